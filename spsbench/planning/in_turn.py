"""The schedule of a measurement: every K once a turn."""

from collections.abc import Sequence
from random import Random

from spsbench.loop.types import Round, Schedule


class InTurn(Schedule):
    """Asks for the first of `ks` to warm up, then for each of them, in an order of its own."""

    def __init__(self, ks: Sequence[int], draw: Random) -> None:
        self._ks, self._draw = list(ks), draw
        self._left: list[int] = []
        self.asked = -1

    def k(self, history: Sequence[Round]) -> int:
        """The next of this turn; a text that has just begun begins a turn."""
        if not history or not self._left:
            self._left = self._draw.sample(self._ks, len(self._ks))
            self.asked = self._ks[0]
        else:
            self.asked = self._left.pop()
        return self.asked
