"""Programs of layers: their operations, run by one call in C for as many layers as follow.

To find an operator, to look at its inputs and to make room for its result takes torch longer than a
small kernel takes. A program knows all of that beforehand. `Bound` says where inputs and results of
each operation lie, such that it holds in any pass; `Program` runs the operations.
"""

from collections.abc import Sequence
from ctypes import Structure, c_double, c_int, c_int64, c_void_p, cast
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.engines.kernels.native import library
from spsbench.engines.packing.memory import ALIGNED
from spsbench.engines.replay.graph_capture import Given, Listing, storage_of
from spsbench.engines.replay.operations import RefusedError, Step
from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.joint import TextLayers

PLACES, NUMBERS, REALS = 10, 16, 2  # of an operation, as in program.h
NONE, SCRATCH, MADE, KEYS, VALUES, FIRST = range(6)  # bases; from the last on inputs and weights
MASK = 3  # which place of attention
NUMBERS_OF_TEXT = 6  # as in program.h
PAST = (("put", 0), ("attend", 1), ("attend", 2))  # places of keys and values


class Place(Structure):
    """A record as in program.h."""

    _fields_ = (("base", c_int64), ("offset", c_int64))


class Operation(Structure):
    """A record as in program.h."""

    _fields_ = (
        ("run", c_void_p),
        ("at", Place * PLACES),
        ("n", c_int64 * NUMBERS),
        ("real", c_double * REALS),
    )


class Form(NamedTuple):
    """The form that an input has in every pass."""

    number: int  # which of the tensors
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Bound:
    """The places of the tensors of a layer's operations in any pass."""

    def __init__(self, given: Given, listing: Listing) -> None:
        self.given, self.listing = given, listing
        self.scratch = 0  # bytes
        self.mask: int | None = None  # which of the tensors
        self._used: set[int] = set()
        self._starts: dict[int, int] = {}  # in the scratch, by storage

    def step(self, step: Step) -> Operation:
        """Return the record that C reads."""
        return Operation(
            cast(getattr(library(), f"step_{step.name}"), c_void_p),
            (Place * PLACES)(*(Place(*self._place(step, n)) for n in range(len(step.at)))),
            (c_int64 * NUMBERS)(*step.n),
            (c_double * REALS)(*step.real),
        )

    def forms(self) -> list[Form]:
        """Return the forms of the inputs that are used."""
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
        """Return the number of the input or weight that holds `tensor`, and the byte offset."""
        every = [*self.given.tensors, *self.given.state]
        found = [n for n, each in enumerate(every) if _within(tensor, each)]
        changing = [n for n in found if n < len(self.given.tensors)]
        if not found or len(changing) > 1:
            raise RefusedError("an operation over what was not given, or was given twice")
        return FIRST + found[0], tensor.data_ptr() - every[found[0]].data_ptr()


def _within(tensor: Tensor, whole: Tensor) -> bool:
    """Return whether the memory of `tensor` begins in that of `whole`."""
    if storage_of(tensor) != storage_of(whole) or not whole.numel():
        return False
    pairs = zip(whole.shape, whole.stride(), strict=True)
    end = 1 + sum((size - 1) * step for size, step in pairs)
    return 0 <= tensor.data_ptr() - whole.data_ptr() < end * whole.itemsize


class Ready(NamedTuple):
    """A layer that can run now."""

    layer: Any
    weights: Sequence[int]  # where they lie
    room: PreallocatedLayer | TextLayers  # its part of the cache, which has room


class Scratch:
    """Memory for what operations make, the same for all programs of a model."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def address(self, size: int) -> int:
        """Make room for so many bytes; former content may be lost."""
        if len(self._memory) < size + ALIGNED:
            self._memory = torch.empty(size + ALIGNED, dtype=torch.uint8, device="cpu")
        start = self._memory.data_ptr()
        return start + -start % ALIGNED


class Program:
    """The operations of layers of one kind, for passes of one length.

    It is called with what `Given.all` returns.
    """

    def __init__(self, given: Given, listing: Listing, scratch: Scratch) -> None:
        """`listing` was written down over what is given; it needs `scratch` while it runs.

        Raises:
            RefusedError: an operation reads what is not given.
        """
        bound = Bound(given, listing)
        steps, made = listing.steps, listing.result
        self._steps = (Operation * len(steps))(*(bound.step(step) for step in steps))
        self._scratch, self._size = scratch, bound.scratch
        self._tensors, self._each = len(given.tensors), FIRST + len(given.tensors)
        self._each += len(given.state)
        self._mask, self._forms = bound.mask, bound.forms()
        self._shape, self._dtype = tuple(made.shape), made.dtype
        found: Any = library()
        self._run = found.run_layers
        self._run.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, *[c_int64] * 5, c_int]
        self._run_texts = found.run_texts
        many = [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int]
        self._run_texts.argtypes = many

    def fits(self, tensors: Sequence[Tensor], seen: int) -> bool:
        """Return whether the program fits a pass with these inputs and so many keys."""
        for number, shape, stride, dtype in self._forms:
            x = tensors[number]
            if x.shape != shape or x.stride() != stride or x.dtype != dtype:
                return False
        if self._mask is None:
            return True
        mask = tensors[self._mask]
        shape = 1, 1, self._shape[1], seen
        return mask.shape == shape and mask.stride(3) == 1 and mask.dtype == self._dtype

    def __call__(self, *given: Tensor) -> Tensor:
        """Return the hidden states [1, m, D] after one layer."""
        count = self._tensors
        span, seen, keys, values = given[count : count + 4]
        room = keys.data_ptr(), values.data_ptr(), keys.shape[2]
        layers = [(list(map(Tensor.data_ptr, given[count + 4 :])), room)]
        return self._over(layers, given[:count], len(span), len(seen))[0]

    def through(
        self,
        layers: Sequence[Ready],
        tensors: Sequence[Tensor],
        end: int,
        seen: int,
    ) -> Tensor:
        """Return the hidden states [L, 1, m, D] after each of some layers, each over those before.

        Args:
            layers: one or more.
            tensors: what `fits`; hidden states first.
            end: tokens in the cache after the pass.
            seen: how many of them are read.

        Raises:
            MemoryError: no room for what an operation needs.
        """
        each = [(own, room) for _, own, room in layers if isinstance(room, TextLayers)]
        if not each:
            alone = [(own, room) for _, own, room in layers if not isinstance(room, TextLayers)]
            places = [(own, room.addresses[:3]) for own, room in alone]
            return self._over(places, tensors, end, seen)
        made, bases = self._bases([(own, 0, 0) for own, _ in each], tensors)
        rooms = [number for _, room in each for number in room.places]
        told = each[0][1].numbers
        failed = self._run_texts(
            self._steps,
            len(self._steps),
            (c_int64 * len(bases))(*bases),
            (c_int64 * len(rooms))(*rooms),
            self._each,
            len(layers),
            (c_int64 * len(told))(*told),
            len(told) // NUMBERS_OF_TEXT,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the operations of a layer")
        return made

    def _bases(
        self, layers: Sequence[tuple[Sequence[int], int, int]], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Return the memory of the result, and the bases of each layer: weights, keys, values."""
        made = torch.empty(len(layers), *self._shape, dtype=self._dtype, device="cpu")
        start, step = made.data_ptr(), made[0].nbytes
        x, *others = [tensor.data_ptr() for tensor in tensors]
        scratch = self._scratch.address(self._size)
        bases: list[int] = []
        for weights, keys, values in layers:
            bases += 0, scratch, start, keys, values, x, *others
            bases += weights
            x, start = start, start + step
        return made, bases

    def _over(
        self,
        layers: Sequence[tuple[Sequence[int], tuple[int, int, int]]],
        tensors: Sequence[Tensor],
        end: int,
        seen: int,
    ) -> Tensor:
        made, bases = self._bases([(own, *room[:2]) for own, room in layers], tensors)
        mask_step = 0 if self._mask is None else tensors[self._mask].stride(2)
        failed = self._run(
            self._steps,
            len(self._steps),
            (c_int64 * len(bases))(*bases),
            (c_int64 * len(layers))(*(room for _, (_, _, room) in layers)),
            self._each,
            len(layers),
            end,
            seen,
            mask_step,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the operations of a layer")
        return made
