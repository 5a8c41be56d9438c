"""Two greedy texts that differ: a rounding tie, or a bug (docs/design.md, invariant 9).

Scoring one token at a time and scoring a block add up the same numbers in another order. In half
precision that can swap two tokens of nearly equal logits. A divergence is a tie only if both tokens
are the reference's top two and their gap is within twice the difference that was measured between
the two ways of scoring; anything else is a bug.
"""

import copy
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM


class Divergence(NamedTuple):
    """The first position where two greedy texts differ."""

    position: int  # index in the output
    tokens: tuple[int, int]  # auto-regressive, speculative
    gap: float  # between the two tokens' reference logits
    tolerance: float  # twice the measured difference of the two ways of scoring
    kind: Literal["tie", "bug"]


def first_divergence(
    model: PreTrainedModel,
    prompt: Sequence[int],
    ars: Sequence[int],
    sps: Sequence[int],
    k: int,
) -> Divergence | None:
    """Compare two greedy outputs of `model`; None when one is the other's beginning or equal.

    The reference is a cacheless pass in float32, for which a model in half precision is copied.
    """
    pairs = enumerate(zip(ars, sps, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is None:
        return None
    text = torch.tensor([*prompt, *ars[:at]])
    reference = last_logits(reference_of(model), text)
    step, block = by_steps(model, text), by_block(model, text, k)
    epsilon = max(float((reference - other).abs().max()) for other in (step, block))
    a, b = ars[at], sps[at]
    gap = abs(float(reference[a] - reference[b]))
    in_top_two = {a, b} == set(reference.topk(2).indices.tolist())
    kind: Literal["tie", "bug"] = "tie" if in_top_two and gap <= 2 * epsilon else "bug"
    return Divergence(at, (a, b), gap, 2 * epsilon, kind)


def reference_of(model: PreTrainedModel) -> PreTrainedModel:
    """`model`, or a float32 copy of one in lower precision."""
    precise = model.dtype in (torch.float32, torch.float64)
    return model if precise else copy.deepcopy(model).float()


@torch.inference_mode()
def last_logits(model: PreTrainedModel, text: Tensor) -> Tensor:
    """[V] logits after `text` without a cache."""
    out = model(input_ids=text[None].to(model.device), use_cache=False, logits_to_keep=1)
    return out.logits[0, -1].float()  # type: ignore[no-any-return]


def by_steps(model: PreTrainedModel, text: Tensor) -> Tensor:
    """[V] logits after `text`, its last token fed alone."""
    lm = EagerLM(model)
    lm.append(text[:-1], keep=0)
    return lm.append(text[-1:], keep=1).logits[0].float()


def by_block(model: PreTrainedModel, text: Tensor, k: int) -> Tensor:
    """[V] logits after `text`, its last token fed in a block of k + 1."""
    lm = EagerLM(model)
    lm.append(text[: -k - 1], keep=0)
    return lm.append(text[-k - 1 :], keep=1).logits[0].float()
