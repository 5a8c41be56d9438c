"""Schedules that break the rule of exactness: whether a slot is verified depends on its token."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.sampling import sample
from spsbench.loop.types import Round, Schedule


class SeesTheDraw(Schedule):
    """Finds the uniform that the drafter is about to use, and stops before an unlikely token."""

    def k(self, history: Sequence[Round]) -> int:
        return 2

    def go_on(self, p: Tensor) -> Tensor:
        frame = sys._getframe()
        while "rolled" not in frame.f_locals:
            frame = frame.f_back
        drawn = sample(p, frame.f_locals["u"][frame.f_locals["i"]])
        return p[drawn] >= 0.5


class RewritesTheLaw(SeesTheDraw):
    """Keeps the distribution of the slot before, and flattens it once its token is drawn."""

    before: Tensor | None = None

    def go_on(self, p: Tensor) -> Tensor:
        if self.before is not None:
            self.before.fill_(1 / len(p))
        self.before = p
        return torch.ones((), dtype=torch.bool)


class SeesTheSlotBefore(SeesTheDraw):
    """Stops after an unlikely token, which is verified: exact."""

    def go_on(self, p: Tensor) -> Tensor:
        frame = sys._getframe()
        while "rolled" not in frame.f_locals:
            frame = frame.f_back
        drawn = frame.f_locals["tokens"]
        return torch.tensor(not len(drawn) or bool(drawn[-1] == 0))
