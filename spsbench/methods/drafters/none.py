"""The drafter that drafts nothing: auto-regressive sampling (Chen et al. 2023, Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Scores


@dataclass(frozen=True)
class NoDrafter(Drafter):
    """Leaves every token to the target, and costs nothing."""

    drawn = Drawn.IID  # vacuously: every verifier may follow

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Nothing to prepare."""

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """No tokens."""
        return Draft(torch.empty(0, dtype=torch.int64), None)
