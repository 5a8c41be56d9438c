"""Layers that were run ahead: in the call of one layer those that follow it are run as well.

A model asks for its layers one by one, in Python. What it then asks of the next is what was
foreseen, or the answer is not used.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor

from spsbench.engines.session.cache import PreallocatedLayer


class Ready(NamedTuple):
    """A layer that can be run now."""

    layer: Any
    weights: Sequence[int]  # where they lie
    room: PreallocatedLayer  # its part of the cache, which has room


class Ahead:
    """The answers of some layers to what they have not been asked yet."""

    def __init__(
        self,
        args: Sequence[Any],
        named: Mapping[str, Any],
        made: Tensor,
        layers: Sequence[Ready],
        end: int,
    ) -> None:
        """What was asked of the first of some layers, and what all have answered.

        Args:
            args, named: of the first.
            made: [L, 1, m, D].
            layers: in order.
            end: tokens in a layer's part of the cache when it has been asked.
        """
        self._given = [*args, *named.values()]
        self._at = next(i for i, one in enumerate(self._given) if isinstance(one, Tensor))
        self._made, self._layers, self._end = made.unbind(), layers, end
        self._asked = 0

    @property
    def left(self) -> int:
        """How many are still to be asked."""
        return len(self._made) - self._asked

    def take(self, layer: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
        """The answer of the next layer, if it is this one and is asked what was foreseen."""
        given = [*args, *named.values()]
        alike = len(given) == len(self._given) and all(map(is_, given, self._given))
        expected = self._layers[self._asked].layer
        return self.answer() if alike and layer is expected else None

    def answer(self) -> Tensor:
        """That of the next layer, which is the one after's hidden states."""
        self._layers[self._asked].room.length = self._end
        made = self._made[self._asked]
        self._given[self._at] = made
        self._asked += 1
        return made
