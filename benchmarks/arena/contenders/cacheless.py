"""Algorithm 2 as tutorials write it (toyllm's among them): every pass computes the whole text.

The package `toyllm` on PyPI (0.1.0) has no speculative sampling in it, and its tokenizer wants the
network when it is imported; so its published algorithm is what is measured, over transformers'
modules and without a cache: `spsbench.loop.reference`, which is the paper's Algorithm 2 line by
line.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from arena.contenders.contender import Contender, Setting, Turn, convert
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.reference import autoregressive_sampling, speculative_sampling
from spsbench.loop.sampling import Warp

__all__ = ["Cacheless", "convert"]

PART = 4  # of the token budget it gets this part: it is that slow


class Cacheless(Contender):
    """No cache, no streaming: the whole generation is timed, prompt and all."""

    def load(self, setting: Setting) -> None:
        """Both models."""
        torch.set_num_threads(setting.threads or setting.cores)
        dtype = getattr(torch, setting.dtype)
        self._setting, self._warp = setting, Warp(setting.temperature)
        self._target, self._draft = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
            for folder in (setting.target, setting.draft)
        )

    def arms(self) -> Sequence[str]:
        """Algorithm 1 and Algorithm 2."""
        return ("ars", "sps")

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """A part of the budget; all rounds are given their mean, for none can be told apart."""
        marks: list[float] = []
        q, p = self._laws(self._target, marks), self._laws(self._draft, [])
        end, noise = len(prompt) + max(1, tokens // PART), PhiloxStream(0)
        began = time.perf_counter()
        if arm == "ars":
            text = autoregressive_sampling(q, prompt, end, noise)
        else:
            text = speculative_sampling(q, p, prompt, self._setting.k, end, noise)
        seconds = time.perf_counter() - began
        count, passes = len(text) - len(prompt), len(marks)
        blocks = [(count / passes, seconds / passes)] * passes
        return Turn(text[len(prompt) :], blocks, whole=True)

    def _laws(self, model: PreTrainedModel, marks: list[float]) -> Callable[[list[int]], Tensor]:
        @torch.inference_mode()
        def laws(x: list[int]) -> Tensor:
            marks.append(time.perf_counter())
            law: Tensor = self._warp(model(input_ids=torch.tensor([x]), use_cache=False).logits[0])
            return law

        return laws

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """None: every pass is over the whole text, and its time is that of a round."""
        return {}

    def notes(self) -> dict[str, Any]:
        """Threads and version."""
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}
