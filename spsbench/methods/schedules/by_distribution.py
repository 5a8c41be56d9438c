"""Schedules that stop a draft by the probs of its next slot: confidence, entropy, a classifier.

transformers' `assistant_confidence_threshold` tests the probability of the drawn token, and stops
after it. These schedules test the probs before anything is drawn from them, so that an uncertain
slot is not drafted at all and verification stays exact (invariant 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.types import Round, Schedule
from spsbench.methods.schedules.by_history import Fold, outcome
from spsbench.metrics.classifier import Classifier, read_classifier
from spsbench.plugins import COST, MOST, SHARE


@dataclass(frozen=True)
class Confidence(Schedule):
    """A schedule that drafts while the greatest probability is `t` or more, up to `most` tokens.

    Host reads: one a drafted token, and one for the slot that is refused.
    """

    ranges: ClassVar = {"t": SHARE, "most": MOST}

    t: float = 0.4
    most: int = 20

    def k(self, history: Sequence[Round]) -> int:
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        return (p.amax() < self.t).logical_not()


RECENT = 0.5  # the weight of the rounds before, in the acceptance that moves the threshold


@dataclass
class Entropy(Schedule):
    """A schedule that drafts while 1 - sqrt(gamma H(p)) is at least a threshold, up to `most`.

    The threshold starts at `t`; after every round with a draft it rises by `step` where fewer than
    `target` of the recent tested tokens were kept, else it falls. `step` 0 keeps it constant. H in
    nats. Host reads: one a drafted token, and one for the refused slot.
    """

    ranges: ClassVar = {
        **dict.fromkeys(("t", "target", "step"), SHARE),
        "gamma": COST,
        "most": MOST,
    }

    t: float = 0.4
    gamma: float = 0.2
    target: float = 0.8
    step: float = 0.01
    most: int = 20

    def __post_init__(self) -> None:
        self._state: Fold[tuple[float, float]] = Fold((self.t, self.target), self._after)
        self._threshold = self.t

    def k(self, history: Sequence[Round]) -> int:
        self._threshold, _ = self._state(history)
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        return (1 - (self.gamma * entropy(p)).sqrt() < self._threshold).logical_not()

    def _after(self, state: tuple[float, float], turn: Round) -> tuple[float, float]:
        """Return threshold, moved within [0, 1], and recent acceptance; unchanged: none tested."""
        threshold, recent = state
        kept, tested = outcome(turn)
        if tested == 0:
            return state
        recent = RECENT * recent + (1 - RECENT) * kept / tested
        moved = threshold + (self.step if recent < self.target else -self.step)
        return min(max(moved, 0.0), 1.0), recent


def entropy(p: Tensor) -> Tensor:
    """Return the [...] entropies of [..., V] in nats; a token of probability 0 adds nothing."""
    nats: Tensor = torch.special.entr(p).sum(-1)
    return nats


@dataclass
class Disco(Schedule):
    """A schedule that drafts while the predicted probability of keeping the path is `t` or more.

    The chance of slot i of a round, from 0, is the logistic function of `bias + entropy * H(p) +
    peak * max p + slot * i`, H in nats; the defaults were fitted on the bundled pair
    (docs/reference/schedules.md), `path` holds others. Host reads: one a drafted token, and one for
    the slot that is refused.
    """

    ranges: ClassVar = {
        **dict.fromkeys(("bias", "entropy", "peak", "slot"), (-1e6, 1e6)),
        "t": SHARE,
        "most": MOST,
    }

    path: str = ""
    t: float = 0.35
    bias: float = 0.66
    entropy: float = -0.06
    peak: float = 1.29
    slot: float = 0.0
    most: int = 20

    def __post_init__(self) -> None:
        self._by = Classifier(self.bias, self.entropy, self.peak, self.slot)
        if self.path:
            self._by = read_classifier(Path(self.path).expanduser())
        self._reached: Tensor | None = None  # the chance that all slots so far are kept
        self._slot = 0

    def k(self, history: Sequence[Round]) -> int:
        self._reached, self._slot = None, 0
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        by = self._by
        logit = by.bias + by.entropy * entropy(p) + by.peak * p.amax() + by.slot * self._slot
        chance = torch.sigmoid(logit)
        self._slot += 1
        self._reached = chance if self._reached is None else self._reached * chance
        return (self._reached < self.t).logical_not()
