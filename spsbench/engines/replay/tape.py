"""What a model's layers do, written down: shared by all of them and by every session over it."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spsbench.engines.packing.linear_layers import hooked
from spsbench.engines.replay.ahead import Ahead, Ready
from spsbench.engines.replay.layer_program import Scratch
from spsbench.engines.session.cache import PreallocatedCache

Replayed = Callable[..., Tensor]


class Layer(Protocol):
    """What stands in for one."""

    at: int  # in the list of layers
    number: int  # in the cache
    kind: int  # equal for layers that are the same computation
    unchecked: dict[Any, int]  # by the kind of a call: replays that are still to be compared
    layer: nn.Module

    def places(self) -> list[int] | None:
        """Where its weights lie; None: they are of another form than they were."""


class Tape:
    """The programs and traces of a model, shared by its layers and by every session over it."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.traces: dict[Any, Replayed | None] = {}
        self.scratch = Scratch()
        self.cache: PreallocatedCache | None = None  # of the session whose pass it is
        self.span = torch.empty(0)  # [past + m], only its length is used
        self.ahead: Ahead | None = None  # in a pass
        self.foreseen = True  # whether the model asks its layers for what was assumed
        self.refused: str | None = None  # why a layer runs its own code
        self._one = Lock()  # pass at a time
        self._left: tuple[Tensor, Tensor] | None = None  # by a layer, and what it was then

    def begin(self, span: Tensor, cache: PreallocatedCache) -> bool:
        """Replay a pass over `cache`; False: another one is not over, in a thread or a hook."""
        if not self._one.acquire(blocking=False):
            return False
        self.span, self.cache = span, cache
        return True

    def end(self) -> None:
        """It is over."""
        self.cache = self.ahead = self._left = None
        self._one.release()

    def remember(self, states: Any) -> None:
        """What a layer gave while it was checked."""
        self._left = (states, states.clone()) if isinstance(states, Tensor) else None

    def look_at(self, states: Tensor) -> None:
        """What the next is given: had it been changed in place, nobody could foresee it."""
        if self._left is not None and states is self._left[0]:
            self.foreseen = self.foreseen and torch.equal(*self._left)

    def foresee(self, ahead: Ahead) -> Tensor:
        """What the first of some layers gives, that were run in one call."""
        made = ahead.answer()
        self.ahead = ahead if ahead.left else None
        return made

    def take(self, layer: Layer, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What `layer` gives for these, if it was run ahead for them; else None."""
        if self.ahead is None:
            return None
        made = self.ahead.take(layer, args, named)
        self.foreseen = self.foreseen and made is not None
        if made is None or not self.ahead.left:
            self.ahead = None
        return made

    def following(self, first: Layer, key: Any, cache: PreallocatedCache, end: int) -> list[Ready]:
        """A layer, and those after it that can be run in the same call, up to `end` tokens.

        Not those that were asked before it, nor those that somebody watches: he may change what
        they give. None at all: not even the first.
        """
        found: list[Ready] = []
        for layer in self.layers[self.layers.index(first) :]:
            room, weights = cache.layers[layer.number], layer.places()
            alike = not found or (
                self.foreseen
                and layer.kind == first.kind
                and layer.unchecked.get(key) == 0
                and layer.at == first.at + len(found)
                and room.length < end
                and room.first == found[0].room.first
                and not hooked(found[-1].layer.layer)
                and not hooked(layer.layer)
            )
            if not alike or weights is None or room.capacity < end:
                break
            found.append(Ready(layer, weights, room))
        return found

    def refuse(self, key: Any, why: str) -> None:
        """Never replay `key` again."""
        self.traces[key] = None
        self.refused = self.refused or why
