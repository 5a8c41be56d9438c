"""Schedules that break the rule of exactness: whether a slot is verified depends on its token."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.sampling import sample
from spsbench.loop.types import Draft, Round, Schedule
from spsbench.methods.schedules.by_batch import Budget


class SeesTheDraw(Schedule):
    """Finds the uniform that the drafter is about to use, and stops before an unlikely token."""

    def k(self, history: Sequence[Round]) -> int:
        return 2

    def go_on(self, p: Tensor) -> Tensor:
        frame = sys._getframe()
        while "left" not in frame.f_locals:
            frame = frame.f_back
        drawn = sample(p, frame.f_locals["left"][0])
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
        while "left" not in frame.f_locals:
            frame = frame.f_back
        drawn = frame.f_locals["tokens"]
        return torch.tensor(not len(drawn) or bool(drawn[-1] == 0))


class RanksByTheToken(Budget):
    """Ranks the tokens of a batch by their own probabilities."""

    def worth(self, draft: Draft) -> Tensor:
        if draft.probs is None:
            return super().worth(draft)
        return draft.probs.gather(1, draft.tokens[:, None])[:, 0].cumprod(0)


class LooksAhead(Budget):
    """Verifies two tokens or none, by what both are worth: the second's law knows the first."""

    def share(self, worths: Sequence[Tensor]) -> list[int]:
        best = torch.cat(list(worths)).sort(descending=True).values[:2]
        return super().share(worths) if best.sum() > 1.37 else [0] * len(worths)
