"""Programs of layers for any number of tokens, by those for a few and for twice as many.

A program holds numbers of rows, sizes and places in memory, each of which grows by as much a token,
or not at all. Two programs tell how, since tensors of `FEW` tokens fill whole lines of the caches:
places then have no gaps that grow otherwise.
"""

from collections.abc import Callable, Mapping
from ctypes import c_void_p, cast
from typing import Any

from spsbench.extensions.cpu.kernels.native import library
from spsbench.extensions.cpu.replay.layer_program import (
    NUMBERS,
    PLACES,
    SCRATCH,
    Form,
    Operation,
    Program,
)
from spsbench.extensions.cpu.replay.operations import RefusedError

FEW = 32  # tokens of the smaller program
WHOLE = 32  # tokens: places in memory are those for a multiple of it, which are aligned
MOST = 64  # programs that are kept
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


class StretchedPrograms:
    """Programs by the key of a call: `(kind, tokens, form)`; None where there is none.

    Args:
        programs: those that were captured, by key.
    """

    def __init__(self, programs: Mapping[Any, Program | None]) -> None:
        self._programs = programs
        self._made: dict[Any, Program | None] = {}

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
