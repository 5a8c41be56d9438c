"""All figures that a model card of the pair tells: losses, the baseline, acceptance rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spsbench.training.nano.fivegram import FiveGram
from spsbench.training.nano.measure import Measure, measure, windows
from spsbench.training.nano.sample import continuations

STRETCHES = 8


@dataclass(frozen=True, slots=True)
class Sampling:
    """How text is drawn from the target: `prompts` held-out prompts, sizes in tokens."""

    prompts: int = 64
    prompt: int = 128
    tokens: int = 128
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """One kind of held-out text: teacher-forced, on the target's own text, and the baseline."""

    forced: Measure
    sampled: Measure
    fivegram_loss: float  # nats a token


def figures(
    target: Any, draft: Any, baseline: FiveGram, ids: Tensor, *, length: int, sampling: Sampling
) -> Figures:
    """Measure a pair of transformers models on the held-out stream ids [N].

    Teacher-forced figures are over consecutive windows of `length` tokens; the baseline sees the
    same stream with its own short context. Sampled ones are over the tokens that the target drew
    at temperature 1 after prompts spread evenly over the stream.
    """

    def score(model: Any) -> Any:
        return lambda part: model(input_ids=part, use_cache=False).logits

    forced = measure(score(target), score(draft), windows(ids, length), stretches=STRETCHES, rows=1)
    starts = torch.linspace(0, len(ids) - sampling.prompt, sampling.prompts).long()
    prompts = ids[starts[:, None] + torch.arange(sampling.prompt)]  # [B, T]
    generator = torch.Generator().manual_seed(sampling.seed)
    drawn = continuations(target, prompts, sampling.tokens, generator)
    own = measure(score(target), score(draft), drawn, skip=sampling.prompt, rows=8)
    return Figures(forced, own, float(baseline.losses(ids.numpy()).mean()))
