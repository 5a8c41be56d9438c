"""Stop where a small classifier says that the slot will hardly be kept (arXiv 2405.04304).

The paper trains a network on the draft's probabilities, their entropy and the position. Ours is a
logistic regression on what can be known before the token is drawn (`forecast.disco` fits it on a
trace), and it stops by the chance that this slot *and all before it* are kept: a slot behind a weak
one is worth no more than that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_most, check_share
from spsbench.methods.schedules.entropy import entropy as entropy_of
from spsbench.planning.forecast.disco import Classifier, read_classifier


@dataclass
class Disco(Schedule):
    """Draft while the chance of keeping the slot and those before it is `t` or more.

    The chance of a slot is the logistic function of `bias + entropy * H(p) + peak * max p`, H in
    nats; the defaults were fitted on the bundled pair (docs/schedules.md), `path` holds others.
    Host reads: one a drafted token, and one for the slot that is refused.
    """

    path: str = ""
    t: float = 0.35
    bias: float = 0.66
    entropy: float = -0.06
    peak: float = 1.29
    most: int = 20

    def __post_init__(self) -> None:
        check_share("t", self.t)
        check_most(self.most)
        self._by = Classifier(self.bias, self.entropy, self.peak)
        if self.path:
            self._by = read_classifier(Path(self.path).expanduser())
        self._reached: Tensor | None = None  # the chance that all slots so far are kept

    def k(self, history: Sequence[Round]) -> int:
        """The bound; a new round begins."""
        self._reached = None
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        """Whether the slot is worth it; a law that is no number goes on, and is reported."""
        by = self._by
        chance = torch.sigmoid(by.bias + by.entropy * entropy_of(p) + by.peak * p.amax())
        self._reached = chance if self._reached is None else self._reached * chance
        return (self._reached < self.t).logical_not()
