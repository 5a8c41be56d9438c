"""Stop where the entropy says that the slot will hardly be kept (AdaEDL, arXiv 2410.18351).

A token is kept with chance 1 - TV(q, p), and TV is at most sqrt(KL / 2) (Pinsker). The divergence
is not known before the target's pass; taking it as a multiple of the draft's own entropy H(p)
gives the estimate 1 - sqrt(gamma H(p)): a bound only as far as that holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_most, check_positive, check_share
from spsbench.methods.schedules.folding import Fold, outcome

RECENT = 0.5  # the weight of the rounds before, in the acceptance that moves the threshold


@dataclass
class Entropy(Schedule):
    """Draft while 1 - sqrt(gamma H(p)) is at least a threshold, up to `most` tokens.

    The threshold begins at `t`, and after every round that drafted it goes up by `step` where fewer
    than `target` of the recent tested tokens were kept, else down. `step` 0 leaves it alone.
    H in nats. Host reads: one a drafted token, and one for the slot that is refused.
    """

    t: float = 0.4
    gamma: float = 0.2
    target: float = 0.8
    step: float = 0.01
    most: int = 20

    def __post_init__(self) -> None:
        for name in ("t", "target", "step"):
            check_share(name, getattr(self, name))
        check_positive("gamma", self.gamma)
        check_most(self.most)
        self._state: Fold[tuple[float, float]] = Fold((self.t, self.target), self._after)
        self._threshold = self.t

    def k(self, history: Sequence[Round]) -> int:
        """The bound; the round's threshold is settled here."""
        self._threshold, _ = self._state(history)
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        """Whether `p` is sure enough; one that is no number goes on, and the loop reports it."""
        return (1 - (self.gamma * entropy(p)).sqrt() < self._threshold).logical_not()

    def _after(self, state: tuple[float, float], turn: Round) -> tuple[float, float]:
        threshold, recent = state
        kept, tested = outcome(turn)
        if tested == 0:
            return state
        recent = RECENT * recent + (1 - RECENT) * kept / tested
        moved = threshold + (self.step if recent < self.target else -self.step)
        return min(max(moved, 0.0), 1.0), recent


def entropy(p: Tensor) -> Tensor:
    """[..., V] -> [...] in nats; a token of probability 0 adds nothing."""
    found: Tensor = torch.special.entr(p).sum(-1)
    return found
