"""The schedule of a measurement: every K once a turn."""

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from spsbench.loop.types import Round, Schedule


class InTurn(Schedule):
    """Asks for each of `ks` once a turn, in an order of its own; the first round is a warm-up."""

    def __init__(self, ks: Sequence[int], draw: Random) -> None:
        self.asked = self._first = ks[0]
        self._ks, self._draw = list(ks), draw
        self._left: list[int] = []

    def k(self, history: Sequence[Round]) -> int:
        """The next of this turn."""
        if not history:
            self._left = []
            return self._first
        if not self._left:
            self._left = self._draw.sample(self._ks, len(self._ks))
        self.asked = self._left.pop()
        return self.asked

    def go_on(self, p: Tensor) -> Tensor:
        """Always."""
        return torch.ones((), dtype=torch.bool)
