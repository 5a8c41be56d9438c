"""A decoder's layers without their Python: traced once, replayed for every layer and step.

A layer of a small model spends more time in Python than in its kernels. The layers of a decoder
are one computation over different weights, so one trace of the first serves all of them: weights,
keys and values are its inputs. What is traced is transformers' own code, and each layer's first two
replays are compared with it, number by number; a difference, or a failure, leaves that code in use.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.integrations import sdpa_attention

from spsbench.engines import attention, rotations, traced_cache
from spsbench.engines.cache import PreallocatedCache, number_of
from spsbench.engines.experts import watched
from spsbench.engines.merging import merged
from spsbench.engines.traced_cache import TracedCache
from spsbench.engines.tracing import over, tensors, traced

MOST = 129  # tokens a pass: the newest and 128 nodes; above it Python's share is small
HARMLESS = {
    Path(str(module.__file__)) for module in (sdpa_attention, attention, rotations, traced_cache)
}
CHECKS = 2  # replays of a layer that are compared with its own code

Replayed = Callable[..., Tensor]


class Tape:
    """The traces of a model, shared by its layers and by every session over it."""

    def __init__(self) -> None:
        self.traces: dict[Any, Replayed | None] = {}
        self.span: Tensor | None = None  # [past + m], only its length is used; None: no replay
        self.refused: str | None = None  # why a layer runs its own code

    def refuse(self, key: Any, why: str) -> None:
        """Never replay `key` again."""
        self.traces[key] = None
        self.refused = self.refused or why


class Replay:
    """Stands in for the `forward` of one layer."""

    def __init__(self, layer: nn.Module, number: int, kind: int, tape: Tape) -> None:
        self.layer, self.number, self.kind, self.tape = layer, number, kind, tape
        self.plain = type(layer).forward
        self.state = tensors(layer)
        self.unchecked: dict[Any, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's own `forward`."""
        span, cache = self.tape.span, _cache(args, kwargs)
        if span is None or cache is None:
            return self.plain(self.layer, *args, **kwargs)
        own = cache.layers[self.number]
        tensors: list[Tensor] = []
        form = (*(_form(a, tensors) for a in args), *kwargs)
        form += tuple(_form(a, tensors) for a in kwargs.values())
        key = self.kind, tensors[0].shape[1], form
        if self.unchecked.get(key) == 0:
            replayed = self.tape.traces[key]
            if replayed is None:
                return self.plain(self.layer, *args, **kwargs)
            own.length = len(span)
            seen = span[own.first :] if own.first else span
            return replayed(*tensors, span, seen, own.keys, own.values, *self.state)
        given = (*tensors, span, span[own.first :], own.keys, own.values)
        return self._checked(key, given, args, kwargs)

    def _checked(self, key: Any, given: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        """The layer's own answer, and whether a replay gives the same.

        `given`: arguments, span, what is seen of it, keys and values, for which there is room.
        """
        inputs = (*given, *self.state)
        with watched():  # experts are counted once
            if key not in self.tape.traces:
                self._trace(key, inputs, args, kwargs)
            replayed = self.tape.traces[key]
            made = None if replayed is None else replayed(*inputs)
        out = self.plain(self.layer, *args, **kwargs)  # last: its keys and values stay
        self.unchecked[key] = self.unchecked.get(key, CHECKS) - 1
        if made is None:
            self.unchecked[key] = 0
        elif not (isinstance(out, Tensor) and torch.equal(made, out)):
            self.tape.refuse(key, "a replay of a layer differs from its own code")
        return out

    def _trace(self, key: Any, inputs: Sequence[Tensor], args: Any, kwargs: Any) -> None:
        n = len(self.state)

        def run(*given: Tensor) -> Any:
            tensors = iter(given)
            cache = TracedCache(*given[-n - 4 : -n])
            own = [_replaced(a, tensors, cache) for a in args]
            named = {name: _replaced(a, tensors, cache) for name, a in kwargs.items()}
            with over(self.layer, given[-n:]):
                return self.plain(self.layer, *own, **named)

        try:
            with (
                warnings.catch_warnings(record=True) as told,
                rotations.one_rotation(self.layer),
                merged(self.layer, lambda: run(*inputs)),
            ):
                warnings.simplefilter("always")
                trace = traced(run, inputs)
        except Exception as error:  # foreign code may do what cannot be traced
            self.tape.refuse(key, f"a layer cannot be traced ({type(error).__name__})")
            return
        if any(_by_value(warning) for warning in told):
            self.tape.refuse(key, "the course of a layer depends on values")
        else:
            self.tape.traces[key] = trace

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.plain.__get__(memo[id(self.layer)])  # a copied model is a stock one


def _by_value(warning: warnings.WarningMessage) -> bool:
    """Whether a tracer tells of a Python value that it had to take for a constant.

    transformers' attention asks for the number of new tokens, which is one for each trace.
    """
    return warning.category.__name__ == "TracerWarning" and Path(warning.filename) not in HARMLESS


def attach(model: nn.Module) -> Tape | None:
    """Put replays in front of the layers of `model`; None when it has no list of them."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    lists = [m for m in lists if all(type(layer) is type(m[0]) for layer in m)]
    if not lists:
        return None
    tape = Tape()
    kinds: dict[Any, int] = {}  # a number is looked up faster than what it stands for
    for layer in max(lists, key=len):
        if (number := number_of(layer)) is not None:
            kind = kinds.setdefault(signature(layer), len(kinds))
            layer.forward = Replay(layer, number, kind, tape)
    return tape


def signature(layer: nn.Module) -> tuple[Any, ...]:
    """Equal for layers that are the same computation: modules, their settings, their tensors."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        plain = (int, float, bool, str, type(None))
        settings = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
        settings.pop("layer_idx", None)
        found.append((name, type(module), *sorted(settings.items(), key=lambda item: item[0])))
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        found.append((name, tuple(tensor.shape), tensor.dtype, tensor.layout))
    return tuple(found)


def _form(value: Any, tensors: list[Tensor]) -> Any:
    """The kind of an argument, for the key of its trace; tensors are collected."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, PreallocatedCache):
        return Cache
    if isinstance(value, tuple):
        return tuple([_form(item, tensors) for item in value])
    return value if value is None or isinstance(value, bool | int | str) else id(value)


def _replaced(value: Any, tensors: Any, cache: Cache) -> Any:
    """An argument with its tensors and its cache exchanged for those of a trace."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, PreallocatedCache):
        return cache
    if isinstance(value, tuple):
        return tuple(_replaced(item, tensors, cache) for item in value)
    return value


def _cache(args: Sequence[Any], kwargs: dict[str, Any]) -> PreallocatedCache | None:
    """Whatever a model calls the argument: past_key_values, layer_past."""
    given = (*args, *kwargs.values())
    return next((value for value in given if isinstance(value, PreallocatedCache)), None)
