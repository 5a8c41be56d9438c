"""Where the inputs and results of a layer's operations lie, told so that it holds in any pass."""

from ctypes import Structure, c_double, c_int64, c_void_p, cast
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.engines.kernels.native import library
from spsbench.engines.packing.memory import ALIGNED
from spsbench.engines.replay.graph_capture import Given, Listing, storage_of
from spsbench.engines.replay.operations import RefusedError, Step

PLACES, NUMBERS, REALS = 10, 16, 2  # of an operation, as in program.h
NONE, SCRATCH, MADE, KEYS, VALUES, FIRST = range(6)  # bases; from the last on inputs and weights
MASK = 3  # which place of attention
PAST = (("put", 0), ("attend", 1), ("attend", 2))  # places of keys and values


class Place(Structure):
    """As in program.h."""

    _fields_ = (("base", c_int64), ("offset", c_int64))


class Operation(Structure):
    """As in program.h."""

    _fields_ = (
        ("run", c_void_p),
        ("at", Place * PLACES),
        ("n", c_int64 * NUMBERS),
        ("real", c_double * REALS),
    )


class Form(NamedTuple):
    """What an input has to be in every pass."""

    number: int  # which of the tensors
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Bound:
    """Where the tensors of a layer's operations lie in any pass."""

    def __init__(self, given: Given, listing: Listing) -> None:
        self.given, self.listing = given, listing
        self.scratch = 0  # bytes
        self.mask: int | None = None  # which of the tensors
        self._used: set[int] = set()
        self._starts: dict[int, int] = {}  # in the scratch, by storage

    def step(self, step: Step) -> Operation:
        """As C reads it."""
        return Operation(
            cast(getattr(library(), f"step_{step.name}"), c_void_p),
            (Place * PLACES)(*(Place(*self._place(step, n)) for n in range(len(step.at)))),
            (c_int64 * NUMBERS)(*step.n),
            (c_double * REALS)(*step.real),
        )

    def forms(self) -> list[Form]:
        """Of the inputs that are used."""
        every = [(n, self.given.tensors[n]) for n in sorted(self._used)]
        return [Form(n, tuple(x.shape), x.stride(), x.dtype) for n, x in every]

    def _place(self, step: Step, place: int) -> tuple[int, int]:
        if (tensor := step.at[place]) is None:
            return NONE, 0
        storage, at = storage_of(tensor), tensor.data_ptr()
        if storage == storage_of(self.listing.result):
            return MADE, at - self.listing.result.data_ptr()
        if storage in self.listing.made:
            return SCRATCH, self._start(storage) + at - storage
        for base, room in (KEYS, self.given.keys), (VALUES, self.given.values):
            if storage == storage_of(room):
                if (step.name.partition("_")[0], place) not in PAST:
                    raise RefusedError("keys or values in another operation than attention")
                return base, 0  # how far the past reaches is told to each pass
        base, offset = self._of_input(tensor)
        if step.name.startswith("attend") and place == MASK:
            self.mask = base - FIRST
        elif base - FIRST < len(self.given.tensors):
            self._used.add(base - FIRST)
        return base, offset

    def _start(self, storage: int) -> int:
        if storage not in self._starts:
            self._starts[storage] = self.scratch
            size = self.listing.made[storage].untyped_storage().nbytes()
            self.scratch += size + -size % ALIGNED
        return self._starts[storage]

    def _of_input(self, tensor: Tensor) -> tuple[int, int]:
        """In the hidden states and what comes with them, or in the weights."""
        every = [*self.given.tensors, *self.given.state]
        found = [n for n, each in enumerate(every) if _within(tensor, each)]
        changing = [n for n in found if n < len(self.given.tensors)]
        if not found or len(changing) > 1:
            raise RefusedError("an operation over what was not given, or was given twice")
        return FIRST + found[0], tensor.data_ptr() - every[found[0]].data_ptr()


def _within(tensor: Tensor, whole: Tensor) -> bool:
    """Whether the memory of `tensor` begins in that of `whole`."""
    if storage_of(tensor) != storage_of(whole) or not whole.numel():
        return False
    pairs = zip(whole.shape, whole.stride(), strict=True)
    end = 1 + sum((size - 1) * step for size, step in pairs)
    return 0 <= tensor.data_ptr() - whole.data_ptr() < end * whole.itemsize
