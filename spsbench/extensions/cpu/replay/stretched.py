"""Programs of layers for any number of tokens, by those for a few and for twice as many.

A program holds numbers of rows, sizes and places in memory, each of which grows by as much a token,
or not at all. Two programs tell how, since tensors of `FEW` tokens fill whole lines of the caches:
places then have no gaps that grow otherwise.

Layers that follow each other run in one call: the first of them runs all, and the others return
what that call gave, where they are called with its results and the same other inputs.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p, cast
from typing import Any, NamedTuple

from torch import Tensor

from spsbench.extensions.cpu.kernels.native import library
from spsbench.extensions.cpu.replay.layer_program import (
    NUMBERS,
    PLACES,
    SCRATCH,
    Form,
    Operation,
    Program,
    Scratch,
    Weights,
)
from spsbench.extensions.cpu.replay.operations import RefusedError

FEW = 32  # tokens of the smaller program
WHOLE = 32  # tokens: places in memory are those for a multiple of it, which are aligned
MOST = 64  # programs that are kept
BYTES_AHEAD = 1 << 25  # of the results of layers that run in one call
Scale = Callable[[int, int], int]


class Stretched(Program):
    """The program of `tokens` tokens.

    Args:
        few, twice: the programs of one layer for `FEW` and for twice as many tokens.
        tokens: how many.
        keys_alone: it ends with the layer's keys and values, and leaves no result.
    """

    def __init__(self, few: Program, twice: Program, tokens: int, keys_alone: bool = False) -> None:
        """Find the numbers.

        Raises:
            RefusedError: the programs differ otherwise, or read a mask.
        """
        size, place = _scale(tokens), _scale(tokens + -tokens % WHOLE)
        alike = len(few.steps) == len(twice.steps) and few.used == twice.used
        if not alike or few.mask is not None or twice.mask is not None:
            raise RefusedError("programs of other operations for more tokens")
        pairs = list(zip(few.steps, twice.steps, strict=True))
        if keys_alone:
            kernels: Any = library()
            put = cast(kernels.step_put, c_void_p).value
            puts = [n for n, step in enumerate(few.steps) if step.run == put]
            pairs = pairs[: 1 + max(puts, default=-1)]
        self.steps = (Operation * len(pairs))(*(_operation(*pair, size, place) for pair in pairs))
        self.scratch, self.mask = place(few.scratch, twice.scratch), None
        self._forms = [
            Form(
                one.number,
                _each(one.shape, two.shape, size),
                _each(one.stride, two.stride, size),
                one.dtype,
            )
            for one, two in zip(few._forms, twice._forms, strict=True)
        ]
        self.used, self.inputs, self.weights = few.used, few.inputs, few.weights
        self.shape, self.dtype = _each(few.shape, twice.shape, size), few.dtype
        self.bytes = size(few.bytes, twice.bytes)


def _scale(tokens: int) -> Scale:
    """Return the function from a number for `FEW` and twice as many tokens to that for `tokens`."""

    def scale(few: int, twice: int) -> int:
        more, rest = divmod(twice - few, FEW)
        if rest:
            raise RefusedError("programs whose numbers grow by no whole number a token")
        return few + more * (tokens - FEW)

    return scale


def _each(few: tuple[int, ...], twice: tuple[int, ...], scale: Scale) -> tuple[int, ...]:
    return tuple(scale(*pair) for pair in zip(few, twice, strict=True))


def _operation(few: Any, twice: Any, size: Scale, place: Scale) -> Operation:
    """Return the record of an operation."""
    if few.run != twice.run or list(few.real) != list(twice.real):
        raise RefusedError("programs of other operations for more tokens")
    operation = Operation()
    operation.run, operation.real = few.run, few.real
    for at in range(PLACES):
        one, two = few.at[at], twice.at[at]
        if one.base != two.base:
            raise RefusedError("programs of other operations for more tokens")
        scale = place if one.base == SCRATCH else size
        operation.at[at].base, operation.at[at].offset = one.base, scale(one.offset, two.offset)
    for at in range(NUMBERS):
        operation.n[at] = size(few.n[at], twice.n[at])
    return operation


class Ahead(NamedTuple):
    """The result of a layer that ran before its call, and the call that it is for."""

    key: Any
    tensors: Sequence[Tensor]
    result: Tensor

    def is_for(self, key: Any, tensors: Sequence[Tensor]) -> bool:
        """Return whether a call is the expected one."""
        return bool(self.key == key) and all(map(operator.is_, self.tensors, tensors))


class StretchedPrograms:
    """Programs by the key of a call: `(kind, tokens, form)`; None where there is none.

    Args:
        programs: those that were captured, by key.
        layers: of the model, in order.

    Attributes:
        joins: layers that follow each other run in one call.
    """

    def __init__(self, programs: Mapping[Any, Program | None], layers: Sequence[Any]) -> None:
        self._programs, self._layers = programs, layers
        self._made: dict[Any, Program | None] = {}
        self._numbers = {layer: n for n, layer in enumerate(layers)}
        self._weights: dict[tuple[int, int], Weights] = {}  # of layers from one to another
        self._ahead: dict[Any, Ahead] = {}  # by layer
        self.joins = True

    def end(self) -> None:
        """Forget results that no layer has asked for: the pass is over."""
        self._ahead.clear()

    def run(
        self,
        layer: Any,
        key: Any,
        tensors: Sequence[Tensor],
        cache: Any,
        end: int,
        scratch: Scratch,
        keys_alone: bool,
    ) -> Tensor | None:
        """Return the result of a layer; None: there is no program for the call.

        Args:
            layer: one of the model's.
            key, tensors: of the call.
            cache: has room for `end` tokens in all layers.
            end: tokens in the cache after the pass.
            scratch: for what operations make.
            keys_alone: nobody reads what the last layer makes of its keys and values.
        """
        if ahead := self._ahead.pop(layer, None):
            if ahead.is_for(key, tensors):
                return ahead.result
            self.joins = False
            self.end()
        first = self._numbers[layer]
        program = self.get(key, keys_alone and first == len(self._layers) - 1)
        if program is None or not program.fits(tensors, end):
            return None
        group = self._group(first, program, keys_alone)
        weights = self._weights_of(first, group)
        if not weights.ready():
            return None
        rooms = [cache.layers[each.number] for each in group]
        results = program.over_layers(weights, tensors, rooms, end, scratch, len(group)).unbind()
        for later, given, result in zip(group[1:], results[:-1], results[1:], strict=True):
            self._ahead[later] = Ahead(key, [given, *tensors[1:]], result)
        return results[0]

    def _group(self, first: int, program: Program, keys_alone: bool) -> Sequence[Any]:
        """Return the layers that run in one call, which are of one kind."""
        most = max(1, BYTES_AHEAD // program.bytes) if self.joins else 1
        last = max(first + 1, len(self._layers) - keys_alone)
        group = [self._layers[first]]
        for layer in self._layers[first + 1 : min(last, first + most)]:
            if layer.kind != group[0].kind:
                break
            group.append(layer)
        return group

    def _weights_of(self, first: int, group: Sequence[Any]) -> Weights:
        key = first, len(group)
        if key not in self._weights:
            self._weights[key] = Weights([x for layer in group for x in layer.state])
        return self._weights[key]

    def get(self, key: Any, keys_alone: bool = False) -> Program | None:
        """Return the program of a call, or with `keys_alone` its part that keeps the past."""
        name = *key, keys_alone
        if name not in self._made:
            if len(self._made) >= MOST:
                self._made.clear()
            self._made[name] = self._make(*name)
        return self._made[name]

    def any(self) -> bool:
        """Return whether there was a program for any call."""
        return any(program is not None for program in self._made.values())

    def _make(self, kind: Any, tokens: int, form: Any, keys_alone: bool) -> Program | None:
        few, twice = (self._programs.get((kind, n * FEW, form)) for n in (1, 2))
        if few is None or twice is None:
            return None
        try:
            return Stretched(few, twice, tokens, keys_alone)
        except RefusedError:
            return None
