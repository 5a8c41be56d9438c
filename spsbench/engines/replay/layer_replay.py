"""A decoder's layers without their Python: written down once, replayed for every layer and step.

A layer of a small model spends more time in Python than in its kernels. The layers of a decoder
are one computation over different weights, so what the first does serves all of them: weights, keys
and values are its inputs. Where each of its operations has a kernel it becomes a program, which C
runs for many layers in one call; else a trace of torch. Either comes from transformers' own code,
and each layer's first two replays are compared with it, number by number; a difference, or a
failure, leaves that code in use.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations import sdpa_attention

from spsbench.engines.packing.experts import watched
from spsbench.engines.replay import attention, rotations, traced_cache
from spsbench.engines.replay.ahead import Ahead
from spsbench.engines.replay.calls import cache_in, called, replaced
from spsbench.engines.replay.graph_capture import Given, lowered
from spsbench.engines.replay.layer_program import Program, Scratch
from spsbench.engines.replay.layers import quicken, signature
from spsbench.engines.replay.merged_products import merged
from spsbench.engines.replay.operations import RefusedError
from spsbench.engines.replay.tape import Tape
from spsbench.engines.replay.traced_cache import TracedCache
from spsbench.engines.replay.tracing import over, tensors, traced
from spsbench.engines.session.cache import number_of

MOST = 129  # tokens a pass: the newest and 128 nodes; above it Python's share is small
HARMLESS = {
    Path(str(module.__file__)) for module in (sdpa_attention, attention, rotations, traced_cache)
}
CHECKS = 2  # replays of a layer that are compared with its own code


class Replay:
    """Stands in for the `forward` of one layer."""

    def __init__(self, layer: nn.Module, at: int, number: int, kind: int, tape: Tape) -> None:
        self.layer, self.at, self.number, self.kind, self.tape = layer, at, number, kind, tape
        self.plain = type(layer).forward
        self.state = tensors(layer)
        self._forms = list(map(_form, self.state))
        self._places: list[int] = []
        self.unchecked: dict[Any, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's own `forward`."""
        span, cache = self.tape.span, cache_in(args, kwargs)
        if cache is None or cache is not self.tape.cache:
            return self.plain(self.layer, *args, **kwargs)
        if (foreseen := self.tape.take(self, args, kwargs)) is not None:
            return foreseen
        own = cache.layers[self.number]
        if own.capacity < len(span):
            return self.plain(self.layer, *args, **kwargs)
        seen = span[own.first :] if own.first else span
        key, tensors = called(self.kind, args, kwargs)
        if self.unchecked.get(key) != 0:
            given = Given(tensors, span, seen, own.keys, own.values, self.state)
            return self._checked(key, given, args, kwargs)
        replayed = self.tape.traces[key]
        if isinstance(replayed, Program):
            fits = replayed.fits(tensors, len(seen))
            layers = self.tape.following(self, key, cache, len(span)) if fits else []
            if layers:
                made = replayed.through(layers, tensors, len(span), len(seen))
                return self.tape.foresee(Ahead(args, kwargs, made, layers, len(span)))
        if replayed is None or isinstance(replayed, Program):
            return self.plain(self.layer, *args, **kwargs)
        own.length = len(span)
        return replayed(*tensors, span, seen, own.keys, own.values, *self.state)

    def places(self) -> list[int] | None:
        """Where the weights lie; None: they are of another form than they were.

        Somebody may have moved them: it is looked up in every pass.
        """
        now = list(map(Tensor.data_ptr, self.state))
        if now != self._places:
            if list(map(_form, self.state)) != self._forms:
                return None
            self._places = now
        return now

    def _checked(self, key: Any, given: Given, args: Any, kwargs: Any) -> Any:
        """The layer's own answer, and whether a replay gives the same; there is room for both."""
        self.tape.look_at(given.tensors[0])
        with watched():  # experts are counted once
            if key not in self.tape.traces:
                self._write_down(key, given, args, kwargs)
            replayed = self.tape.traces[key]
            fits = not isinstance(replayed, Program) or (
                self.places() is not None and replayed.fits(given.tensors, len(given.seen))
            )
            if not fits:
                return self.plain(self.layer, *args, **kwargs)
            made = None if replayed is None else replayed(*given.all())
        out = self.plain(self.layer, *args, **kwargs)  # last: its keys and values stay
        self.tape.remember(out)
        self.unchecked[key] = self.unchecked.get(key, CHECKS) - 1
        if made is None:
            self.unchecked[key] = 0
        elif not (isinstance(out, Tensor) and torch.equal(made, out)):
            self.tape.refuse(key, "a replay of a layer differs from its own code")
        return out

    def _write_down(self, key: Any, given: Given, args: Any, kwargs: Any) -> None:
        """What the layer does with these arguments: as a program, else as a trace."""
        n = len(self.state)

        def run(*given: Tensor) -> Any:
            tensors = iter(given)
            cache = TracedCache(*given[-n - 4 : -n])
            own = [replaced(a, tensors, cache) for a in args]
            named = {name: replaced(a, tensors, cache) for name, a in kwargs.items()}
            with over(self.layer, given[-n:]):
                return self.plain(self.layer, *own, **named)

        try:
            with (
                warnings.catch_warnings(record=True) as told,
                rotations.one_rotation(self.layer),
                merged(self.layer, lambda: run(*given.all())),
            ):
                warnings.simplefilter("always")
                program = _program(run, given, self.tape.scratch)
                self.tape.traces[key] = program or traced(run, given.all())
        except Exception as error:  # foreign code may do what cannot be traced
            self.tape.refuse(key, f"a layer cannot be traced ({type(error).__name__})")
            return
        if any(_by_value(warning) for warning in told):
            self.tape.refuse(key, "the course of a layer depends on values")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.plain.__get__(memo[id(self.layer)])  # a copied model is a stock one


def _form(weight: Tensor) -> tuple[Any, ...]:
    """What a program expects of it."""
    return weight.shape, weight.stride(), weight.dtype, weight.device


def _program(run: Callable[..., Any], given: Given, scratch: Scratch) -> Program | None:
    """What `run` does, where every operation of it has a kernel."""
    try:
        return Program(given, lowered(run, given), scratch)
    except RefusedError:
        return None


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
    layers = max(lists, key=len)
    quicken(layers, tape)
    for at, layer in enumerate(layers):
        if (number := number_of(layer)) is not None:
            kind = kinds.setdefault(signature(layer), len(kinds))
            layer.forward = Replay(layer, at, number, kind, tape)
            tape.layers.append(layer.forward)
    return tape
