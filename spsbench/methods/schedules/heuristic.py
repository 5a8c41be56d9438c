"""Two more after a draft that was kept whole, one less after any other.

The rule of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`), with
an upper end and none of its state: it is begun anew for every text.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_most
from spsbench.methods.schedules.folding import Fold

UP, DOWN = 2, 1


@dataclass
class Heuristic(Schedule):
    """K from the past alone, between 1 and `most`; no host read."""

    start: int = 5
    most: int = 20

    def __post_init__(self) -> None:
        check_most(self.most)
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start is {self.start}: expected 1 to most, which is {self.most}")
        self._k: Fold[int] = Fold(self.start, self._after)

    def k(self, history: Sequence[Round]) -> int:
        """What the rounds so far have made of `start`."""
        return self._k(history)

    def memory(self, history: Sequence[Round]) -> Hashable:
        """All of the past that it will ever look at, for a replay: K itself."""
        return self._k(history)

    def _after(self, k: int, turn: Round) -> int:
        if turn.drafted == 0:
            return k  # a look-up that found nothing says nothing about K
        return min(k + UP, self.most) if turn.full else max(k - DOWN, 1)
