"""Programs of layers: their operations, run by one call in C for as many layers as follow.

Torch needs longer to find an operator, to check its inputs and to allocate its result than a small
kernel runs. A program knows all of that beforehand. `Bound` says where inputs and results of
each operation lie, such that it holds in any pass; `Segment` gives C what differs between passes.
"""

from collections.abc import Sequence
from ctypes import Structure, addressof, c_double, c_int, c_int64, c_void_p, cast
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.joint import TextLayers
from spsbench.extensions.cpu.kernels.native import library
from spsbench.extensions.cpu.packing.memory import ALIGNED
from spsbench.extensions.cpu.replay.graph_capture import (
    LayerInputs,
    Listing,
    have_addresses,
    storage_of,
)
from spsbench.extensions.cpu.replay.operations import RefusedError, Step
from spsbench.extensions.cpu.warp import WarpInC

PLACES, NUMBERS, REALS = 10, 16, 2  # of an operation, as in program.h
NONE, SCRATCH, MADE, KEYS, VALUES, FIRST = range(6)  # bases; from the last on inputs and weights
NO_MEMORY, NO_ROW = 1, 2  # as in program.h
MASK = 3  # which place of attention
TEXT = 6  # numbers of a text, as in program.h
Rooms = Sequence[PreallocatedLayer | TextLayers]
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


class Part(Structure):
    """A record as in program.h."""

    _fields_ = (
        *(("steps", c_void_p), ("count", c_int64)),
        *(("inputs", c_void_p), ("inputs_count", c_int64)),
        *(("weights", c_void_p), ("each", c_int64), ("rooms", c_void_p)),
        *(("layers", c_int64), ("step", c_int64)),
        *(("texts", c_void_p), ("texts_count", c_int64)),
    )


class Form(NamedTuple):
    """The form that an input has in every pass."""

    number: int  # which of the tensors
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Bound:
    """The places of the tensors of a layer's operations in any pass."""

    def __init__(self, inputs: LayerInputs, listing: Listing) -> None:
        self.inputs, self.listing = inputs, listing
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
        every = [(n, self.inputs.tensors[n]) for n in sorted(self._used)]
        return [Form(n, tuple(x.shape), x.stride(), x.dtype) for n, x in every]

    def _place(self, step: Step, place: int) -> tuple[int, int]:
        if (tensor := step.at[place]) is None:
            return NONE, 0
        storage, at = storage_of(tensor), tensor.data_ptr()
        if storage == storage_of(self.listing.result):
            return MADE, at - self.listing.result.data_ptr()
        if storage in self.listing.outputs:
            return SCRATCH, self._start(storage) + at - storage
        for base, room in (KEYS, self.inputs.keys), (VALUES, self.inputs.values):
            if storage == storage_of(room):
                if (step.name.partition("_")[0], place) not in PAST:
                    raise RefusedError("keys or values in another operation than attention")
                return base, 0  # how far the past reaches is told to each pass
        base, offset = self._of_input(tensor)
        if step.name.startswith("attend") and place == MASK:
            self.mask = base - FIRST
        elif base - FIRST < len(self.inputs.tensors):
            self._used.add(base - FIRST)
        return base, offset

    def _start(self, storage: int) -> int:
        if storage not in self._starts:
            self._starts[storage] = self.scratch
            size = self.listing.outputs[storage].untyped_storage().nbytes()
            self.scratch += size + -size % ALIGNED
        return self._starts[storage]

    def _of_input(self, tensor: Tensor) -> tuple[int, int]:
        """Return the number of the input or weight that holds `tensor`, and the byte offset."""
        every = [*self.inputs.tensors, *self.inputs.state]
        containing = [n for n, candidate in enumerate(every) if _within(tensor, candidate)]
        changing = [n for n in containing if n < len(self.inputs.tensors)]
        if not containing or len(changing) > 1:
            raise RefusedError("an operation over what was not given, or was given twice")
        return FIRST + containing[0], tensor.data_ptr() - every[containing[0]].data_ptr()


def _within(tensor: Tensor, whole: Tensor) -> bool:
    """Return whether the memory of `tensor` begins in that of `whole`."""
    if storage_of(tensor) != storage_of(whole) or not whole.numel():
        return False
    pairs = zip(whole.shape, whole.stride(), strict=True)
    end = 1 + sum((size - 1) * step for size, step in pairs)
    return 0 <= tensor.data_ptr() - whole.data_ptr() < end * whole.itemsize


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
    """The operations of layers of one kind, or outside of layers, for passes of one length.

    Attributes:
        shape, dtype: of the result; of a layer [1, m, D].
        used: the numbers of inputs that are read, without the mask.
        mask: the number of the mask; None: there is none.
    """

    def __init__(self, inputs: LayerInputs, listing: Listing) -> None:
        """Bind the operations of `listing`, captured over `inputs`.

        Raises:
            RefusedError: an operation reads a tensor that is no input.
        """
        bound = Bound(inputs, listing)
        steps, result = listing.steps, listing.result
        self.steps = (Operation * len(steps))(*(bound.step(step) for step in steps))
        self.scratch, self.mask, self._forms = bound.scratch, bound.mask, bound.forms()
        self.used = {form.number for form in self._forms}
        self.inputs, self.weights = FIRST + len(inputs.tensors), len(inputs.state)
        self.shape, self.dtype = tuple(result.shape), result.dtype
        self.bytes = result.nbytes

    def fits(self, tensors: Sequence[Tensor], key_count: int) -> bool:
        """Return whether the program fits a pass with these inputs and so many keys."""
        for number, shape, stride, dtype in self._forms:
            x = tensors[number]
            if x.shape != shape or x.stride() != stride or x.dtype != dtype:
                return False
        return self.mask is None or self.fits_mask(tensors[self.mask], key_count)

    def fits_mask(self, mask: Tensor, key_count: int) -> bool:
        """Return whether a layer's program fits a pass with this mask and so many keys."""
        whole = mask.shape == (1, 1, self.shape[1], key_count) and mask.stride(3) == 1
        return whole and mask.dtype == self.dtype

    def over(self, weights: "Weights", tensors: Sequence[Tensor], rooms: Rooms, end: int) -> Tensor:
        """Return the result, of one layer or of what has none, over inputs that fit.

        Raises:
            MemoryError, IndexError: as `run`.
        """
        return self.over_layers(weights, tensors, rooms, end, Scratch(), 1)[0]

    def over_layers(
        self,
        weights: "Weights",
        tensors: Sequence[Tensor],
        rooms: Rooms,
        end: int,
        scratch: Scratch,
        layers: int,
    ) -> Tensor:
        """Return the results [layers, ...] of layers that follow each other, over inputs that fit.

        Raises:
            MemoryError, IndexError: as `run`.
        """
        results = torch.empty((layers, *self.shape), dtype=self.dtype, device="cpu")
        part = Part()
        segment = Segment(self, weights, part, layers)
        mask = None if self.mask is None else tensors[self.mask]
        inputs = list(map(Tensor.data_ptr, tensors))
        segment.set(scratch.address(self.scratch), results.data_ptr(), inputs, rooms, end, mask)
        run((Part * 1)(part))
        return results


class Weights:
    """Tensors of modules, whose memory may be moved: it is looked up in every pass."""

    def __init__(self, state: Sequence[Tensor]) -> None:
        self.state = list(state)
        self._readable = have_addresses(self.state)
        self._forms, self._places = list(map(_form, self.state)), list[int]()
        self.array: Any = (c_int64 * len(self.state))()

    def ready(self) -> bool:
        """Look up the weights' addresses; False: one has none, or another form than before."""
        if not self._readable:
            return False
        now = list(map(Tensor.data_ptr, self.state))
        if now != self._places:
            if list(map(_form, self.state)) != self._forms:
                return False
            self._places = now
            self.array[:] = now
        return True


def _form(weight: Tensor) -> tuple[Any, ...]:
    """Return what a program expects of a weight."""
    return weight.shape, weight.stride(), weight.dtype, weight.device


class Segment:
    """A program over layers that follow each other, and what C reads of a pass through them."""

    def __init__(self, program: Program, weights: Weights, part: Part, layers: int = 1) -> None:
        """Fill `part` for a program over layers whose weights stand one after another."""
        self.program, self.part, self._alive = program, part, weights
        self._inputs: Any = (c_int64 * program.inputs)()
        self._rooms: list[int] = []
        self._arrays: list[Any] = [None, None]
        part.steps, part.count = addressof(program.steps), len(program.steps)
        part.inputs, part.inputs_count = addressof(self._inputs), program.inputs
        part.weights, part.each = addressof(weights.array), program.weights
        part.layers, part.step = layers, program.bytes

    def set(
        self,
        scratch: int,
        results: int,
        inputs: Sequence[int],
        rooms: Rooms = (),
        end: int = 0,
        mask: Tensor | None = None,
    ) -> None:
        """Set the addresses of a pass.

        Args:
            scratch, results: addresses for intermediate results, and for the results of all layers.
            inputs: hidden states first.
            rooms: the layers' parts of the cache, which have room for `end` tokens.
            end: tokens in the cache after the pass.
            mask: of the pass.
        """
        self._inputs[:] = (0, scratch, results, 0, 0, *inputs)
        if not rooms:
            return
        places = [number for room in rooms for number in room.addresses]
        if places != self._rooms:
            self._rooms, self._arrays[0] = places, (c_int64 * len(places))(*places)
            self.part.rooms = addressof(self._arrays[0])
        texts: Sequence[int] | None = getattr(rooms[0], "texts", None)
        if texts is None:
            where = (0, 0) if mask is None else (mask.data_ptr(), mask.stride(2))
            texts = 0, self.program.shape[1], end, end - rooms[0].first, *where
        self._arrays[1] = (c_int64 * len(texts))(*texts)
        self.part.texts, self.part.texts_count = addressof(self._arrays[1]), len(texts) // TEXT


class Draws(Structure):
    """The record `draws` of program.h."""

    _fields_ = (
        *(("ids", c_void_p), ("u", c_void_p), ("first", c_void_p), ("made", c_void_p)),
        ("names", c_void_p),
        *(("passes", c_int64), ("tokens", c_int64), ("bytes", c_int64), ("narrow", c_int64)),
        ("warp", WarpInC),
    )


def run(parts: Any, draws: Draws | None = None, inputs: Sequence[Sequence[int]] = ()) -> None:
    """Run an array of `Part` one after another: a pass, or with `draws` one after each draw.

    Args:
        inputs: by how many bytes each input of each part differs from pass to pass; the result of
            the last part does by as many as its logits.

    Raises:
        MemoryError: no room for what an operation needs.
        IndexError: an id beyond the embeddings.
    """
    threads = torch.get_num_threads()
    if draws is None:
        failed = _in_c().run_segments(parts, len(parts), threads)
    else:
        advances = [(c_int64 * (FIRST + len(more)))(*[0] * FIRST, *more) for more in inputs]
        advances[-1][MADE] = draws.bytes
        places = (c_void_p * len(advances))(*map(addressof, advances))
        failed = _in_c().roll_out(parts, len(parts), threads, places, addressof(draws))
    if failed == NO_MEMORY:
        raise MemoryError("no memory for the operations of a layer")
    if failed == NO_ROW:
        raise IndexError("an id beyond the embeddings")


@cache
def _in_c() -> Any:
    kernels: Any = library()
    kernels.run_segments.argtypes = c_void_p, c_int64, c_int
    kernels.roll_out.argtypes = c_void_p, c_int64, c_int, c_void_p, c_void_p
    return kernels
