"""A decoder's layers without their Python: captured once, replayed for every layer and step.

A layer of a small model spends more time in Python than in its kernels. The layers of a decoder
are one computation over different weights, so what the first does serves all of them: weights, keys
and values are its inputs. Where each of its operations has a kernel it becomes a program, which C
runs for many layers in one call. It comes from transformers' own code, and each layer's first two
replays are compared with it, number by number; a difference, or an operation without a kernel,
leaves that code in use.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from spsbench.engines.packing.experts import watched
from spsbench.engines.packing.linear_layers import hooked
from spsbench.engines.replay.fused_modules import one_rotation
from spsbench.engines.replay.graph_capture import CaptureCache, Given, capture
from spsbench.engines.replay.layer_program import Program, Ready, Scratch
from spsbench.engines.replay.merged_products import merged
from spsbench.engines.replay.operations import RefusedError
from spsbench.engines.session.cache import PreallocatedCache, number_of
from spsbench.engines.session.joint import JointCache

MOST = 129  # tokens a pass: the newest and 128 nodes; above it Python's share is small
Caches = PreallocatedCache | JointCache
CHECKS = 2  # replays of a layer that are compared with its own code


def attach(model: nn.Module) -> "LayerReplay | None":
    """Put replays in front of the layers of `model`; None when it has no list of layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    lists = [m for m in lists if all(type(layer) is type(m[0]) for layer in m)]
    if not lists:
        return None
    replay = LayerReplay()
    kinds: dict[Any, int] = {}  # a number is looked up faster than what it stands for
    layers = max(lists, key=len)
    if type(layers) in (nn.ModuleList, LayerList):
        layers.__class__ = LayerList
        layers.replay = replay  # type: ignore[assignment]
    for at, layer in enumerate(layers):
        if (number := number_of(layer)) is not None:
            kind = kinds.setdefault(signature(layer), len(kinds))
            layer.forward = ReplayedLayer(layer, at, number, kind, replay)
            replay.layers.append(layer.forward)
    return replay


class LayerList(nn.ModuleList):
    """A list of layers, a part of which is a plain list within a replayed pass.

    transformers takes a part of all layers in each pass.
    """

    replay: "LayerReplay"

    def __getitem__(self, index: Any) -> Any:
        """Return a layer, or some."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        some = list(self)[index]
        return nn.ModuleList(some) if self.replay.cache is None else some

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.ModuleList:
        return nn.ModuleList(copy.deepcopy(list(self), memo))


class LayerReplay:
    """The programs of a model, shared by its layers and by every session over it."""

    def __init__(self) -> None:
        self.layers: list[ReplayedLayer] = []
        self.programs: dict[Any, Program | None] = {}  # by the kind of a call
        self.scratch = Scratch()
        self.cache: Caches | None = None  # of the session, or the sessions, whose pass it is
        self.span = torch.empty(0)  # [past + m], only its length is used
        self.ahead: Lookahead | None = None  # in a pass
        self.foreseen = True  # whether the model asks its layers for what was assumed
        self.refused: str | None = None  # why a layer runs its own code
        self._one = Lock()  # pass at a time
        self._left: tuple[Tensor, Tensor] | None = None  # by a layer, and what it was then

    def begin(self, span: Tensor, cache: "Caches") -> bool:
        """Begin a pass over `cache`; False: another pass is not over, in a thread or a hook."""
        if not self._one.acquire(blocking=False):
            return False
        self.span, self.cache = span, cache
        return True

    def room(self, number: int) -> Any:
        """Return a layer's part of the cache."""
        return None if self.cache is None else self.cache.layers[number]

    def end(self) -> None:
        """End the pass."""
        self.cache = self.ahead = self._left = None
        self._one.release()

    def remember(self, states: Any) -> None:
        """Note what a layer gave while it was checked."""
        self._left = (states, states.clone()) if isinstance(states, Tensor) else None

    def look_at(self, states: Tensor) -> None:
        """Note whether the model changes states between layers: those cannot be foreseen."""
        if self._left is not None and states is self._left[0]:
            self.foreseen = self.foreseen and torch.equal(*self._left)

    def foresee(self, ahead: "Lookahead") -> Tensor:
        """Return what the first of some layers gives that were run in one call."""
        made = ahead.answer()
        self.ahead = ahead if ahead.left else None
        return made

    def take(self, layer: "ReplayedLayer", args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what `layer` gives for these, if it was run ahead for them; else None."""
        if self.ahead is None:
            return None
        made = self.ahead.take(layer, args, named)
        self.foreseen = self.foreseen and made is not None
        if made is None or not self.ahead.left:
            self.ahead = None
        return made

    def following(self, first: "ReplayedLayer", key: Any, cache: "Caches", end: int) -> list[Ready]:
        """Return a layer, and those after it that can run in the same call, up to `end` tokens.

        Layers that were asked before it, or that have a hook, are left out: a hook may change what
        a layer gives. The list is empty if the first cannot run.
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
        """Never replay calls of the kind `key` again."""
        self.programs[key] = None
        self.refused = self.refused or why


class ReplayedLayer:
    """Stands in for the `forward` of one layer."""

    def __init__(
        self, layer: nn.Module, at: int, number: int, kind: int, replay: LayerReplay
    ) -> None:
        """Stand in for `layer`.

        Args:
            layer: one of a decoder.
            at: its place in the list of layers.
            number: its part of a cache.
            kind: the same for layers that are the same computation.
            replay: of the model.
        """
        self.layer, self.at, self.number, self.kind, self.replay = layer, at, number, kind, replay
        self.plain = type(layer).forward
        self.state = tensors_of(layer)
        self.unchecked: dict[Any, int] = {}  # by the kind of a call: replays still to be compared
        self._forms = list(map(_form, self.state))
        self._places: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the layer's own `forward`."""
        span, cache = self.replay.span, cache_in(args, kwargs)
        if cache is None or cache is not self.replay.cache:
            return self.plain(self.layer, *args, **kwargs)
        if (foreseen := self.replay.take(self, args, kwargs)) is not None:
            return foreseen
        own = cache.layers[self.number]
        if own.capacity < len(span):
            return self.plain(self.layer, *args, **kwargs)
        seen = span[own.first :] if own.first else span
        key, tensors = kind_of_call(self.kind, args, kwargs)
        if self.unchecked.get(key) != 0:
            given = Given(tensors, span, seen, own.keys, own.values, self.state)
            return self._checked(key, given, args, kwargs)
        program = self.replay.programs[key]
        if program is not None and program.fits(tensors, len(seen)):
            layers = self.replay.following(self, key, cache, len(span))
            if layers:
                made = program.through(layers, tensors, len(span), len(seen))
                return self.replay.foresee(Lookahead(args, kwargs, made, layers, len(span)))
        return self.plain(self.layer, *args, **kwargs)

    def places(self) -> list[int] | None:
        """Return where the weights lie; None: they are of another form than they were.

        Weights may have been moved, so they are looked up in every pass.
        """
        now = list(map(Tensor.data_ptr, self.state))
        if now != self._places:
            if list(map(_form, self.state)) != self._forms:
                return None
            self._places = now
        return now

    def _checked(self, key: Any, given: Given, args: Any, kwargs: Any) -> Any:
        """Return the layer's own answer, and note whether a replay gives the same."""
        self.replay.look_at(given.tensors[0])
        with watched():  # experts are counted once
            if key not in self.replay.programs:
                self._capture(key, given, args, kwargs)
            program = self.replay.programs[key]
            made = None
            if program is not None:
                if self.places() is None or not program.fits(given.tensors, len(given.seen)):
                    return self.plain(self.layer, *args, **kwargs)
                own = [Ready(self, self.places() or (), self.replay.room(self.number))]
                made = program.through(own, given.tensors, len(given.span), len(given.seen))[0]
        out = self.plain(self.layer, *args, **kwargs)  # last: its keys and values stay
        self.replay.remember(out)
        self.unchecked[key] = self.unchecked.get(key, CHECKS) - 1
        if made is None:
            self.unchecked[key] = 0
        elif not (isinstance(out, Tensor) and torch.equal(made, out)):
            self.replay.refuse(key, "a replay of a layer differs from its own code")
        return out

    def _capture(self, key: Any, given: Given, args: Any, kwargs: Any) -> None:
        """Make a program of what the layer does with these arguments, if it can be one."""
        n = len(self.state)

        def run(*given: Tensor) -> Any:
            tensors = iter(given)
            cache = CaptureCache(*given[-n - 4 : -n])
            own = [replaced(a, tensors, cache) for a in args]
            named = {name: replaced(a, tensors, cache) for name, a in kwargs.items()}
            return self.plain(self.layer, *own, **named)

        try:
            with one_rotation(self.layer), merged(self.layer, lambda: run(*given.all())):
                listing = capture(run, given)
                self.replay.programs[key] = Program(given, listing, self.replay.scratch)
        except RefusedError as error:
            self.replay.refuse(key, str(error))
        except Exception as error:  # foreign code may do what cannot be captured
            self.replay.refuse(key, f"a layer cannot be captured ({type(error).__name__})")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.plain.__get__(memo[id(self.layer)])  # a copied model is a stock one


class Lookahead:
    """The answers of some layers that were run before the model asks for them.

    A model asks for its layers one by one, in Python. What it asks of the next layer is what was
    foreseen, object by object, or the answer is not used.
    """

    def __init__(
        self,
        args: Sequence[Any],
        named: Mapping[str, Any],
        made: Tensor,
        layers: Sequence[Ready],
        end: int,
    ) -> None:
        """Hold what some layers answer to what the first was asked.

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
        """Return how many layers are still to be asked."""
        return len(self._made) - self._asked

    def take(self, layer: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
        """Return the answer of the next layer, if `layer` is it and is asked what was foreseen."""
        given = [*args, *named.values()]
        alike = len(given) == len(self._given) and all(map(is_, given, self._given))
        expected = self._layers[self._asked].layer
        return self.answer() if alike and layer is expected else None

    def answer(self) -> Tensor:
        """Return the next layer's answer, which is the following one's hidden states."""
        self._layers[self._asked].room.length = self._end
        made = self._made[self._asked]
        self._given[self._at] = made
        self._asked += 1
        return made


def signature(layer: nn.Module) -> tuple[Any, ...]:
    """Return the same for layers that are the same computation: modules, settings, tensors."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        plain = (int, float, bool, str, type(None))
        settings = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
        settings.pop("layer_idx", None)
        found.append((name, type(module), *sorted(settings.items(), key=lambda item: item[0])))
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        found.append((name, tuple(tensor.shape), tensor.dtype, tensor.layout))
    return tuple(found)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Return each parameter and buffer of a module, in the order of its parts."""
    stores = [store for part in module.modules() for store in (part._parameters, part._buffers)]
    return [tensor for store in stores for tensor in store.values() if tensor is not None]


def kind_of_call(kind: int, args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, list[Tensor]]:
    """Return what a call of a layer of `kind` has in common with others, and its tensors.

    The hidden states [1, m, D] come first; m is in common.
    """
    tensors: list[Tensor] = []
    form = (*(form_of(a, tensors) for a in args), *named)
    form += tuple(form_of(a, tensors) for a in named.values())
    return (kind, tensors[0].shape[1], form), tensors


def form_of(value: Any, tensors: list[Tensor]) -> Any:
    """Return the kind of an argument; tensors are collected."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, Caches):
        return type(value)
    if isinstance(value, tuple):
        return tuple([form_of(item, tensors) for item in value])
    return value if value is None or isinstance(value, bool | int | str) else id(value)


def replaced(value: Any, tensors: Iterator[Tensor], cache: Cache) -> Any:
    """Return an argument with its tensors and its cache exchanged for those of a capture."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Caches):
        return cache
    if isinstance(value, tuple):
        return tuple(replaced(item, tensors, cache) for item in value)
    return value


def cache_in(args: Sequence[Any], kwargs: dict[str, Any]) -> "Caches | None":
    """Return the cache among arguments, whatever a model calls it: past_key_values, layer_past."""
    given = (*args, *kwargs.values())
    return next((value for value in given if isinstance(value, Caches)), None)


def _form(weight: Tensor) -> tuple[Any, ...]:
    """Return what a program expects of a weight."""
    return weight.shape, weight.stride(), weight.dtype, weight.device
