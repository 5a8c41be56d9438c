"""Folding the past into a number or two: what the schedules that learn from it share.

`k(history)` is a pure function of the history: the same past gives the same K in any order of
asking. Only the cost is saved: of a list that grows, each round is looked at once.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spsbench.loop.types import Round

S = TypeVar("S")
PRIOR = 4.0  # tokens


class Fold(Generic[S]):
    """`step(... step(step(start, first round), second round) ...)` of a history that grows."""

    def __init__(self, start: S, step: Callable[[S, Round], S]) -> None:
        self._start, self._step = start, step
        self._of: Sequence[Round] | None = None
        self._newest: Round | None = None  # of those that are folded
        self._seen, self._state = 0, start

    def __call__(self, history: Sequence[Round]) -> S:
        """The state after all of `history`."""
        if not self._goes_on(history):
            self._of, self._seen, self._state = history, 0, self._start
        for turn in history[self._seen :]:
            self._state = self._step(self._state, turn)
        self._seen = len(history)
        self._newest = history[-1] if history else None
        return self._state

    def _goes_on(self, history: Sequence[Round]) -> bool:
        """Whether it is the list that was folded, perhaps longer."""
        if history is not self._of or len(history) < self._seen:
            return False
        return self._seen == 0 or history[self._seen - 1] is self._newest


def outcome(turn: Round) -> tuple[int, int]:
    """Draft tokens that a round kept, and those that its rule looked at.

    Counts, because they are right for every rule; the overlap of the laws is what `sps` keeps on
    the mean, and no other rule. A rule that does not test one by one is taken to have stopped at
    the first token that it did not keep.
    """
    tested = turn.tested if turn.tested >= 0 else min(turn.accepted + 1, turn.drafted)
    return turn.accepted, tested


class RunningAcceptance:
    """The share of tested tokens that were kept, the newest rounds counting most.

    Every round, with a draft or without, multiplies the weight of those before it by `decay`; a
    prior of 4 tokens of which `alpha` were kept never fades. So an estimate that nothing is
    drafted on drifts back to the prior, and is tried again.
    """

    def __init__(self, decay: float, alpha: float) -> None:
        self._alpha, self._decay = alpha, decay
        self._sums: Fold[tuple[float, float]] = Fold((0.0, 0.0), self._add)

    def __call__(self, history: Sequence[Round]) -> float:
        """The estimate after `history`, above 0 and below 1 as the prior is."""
        kept, tested = self._sums(history)
        return (self._alpha * PRIOR + kept) / (PRIOR + tested)

    def _add(self, sums: tuple[float, float], turn: Round) -> tuple[float, float]:
        kept, tested = outcome(turn)
        return self._decay * sums[0] + kept, self._decay * sums[1] + tested
