"""Programs: from recordings of a few sizes, the steps of a pass of any size, which C runs.

Every number of a step, every offset and every size of a result is `a + b tokens + c kept`, where
`kept` rows of the logits are asked for. Memory for what steps make is laid out for each size, and
shared by what is never needed at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from ctypes import Structure, addressof, c_int64, c_void_p
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from spsbench.engines.replay import RollOut
from spsbench.extensions.cpu.kernels.steps import (
    FIRST,
    KEYS,
    NUMBERS,
    REALS,
    SCRATCH,
    STEP_ARGS,
    TEXT,
    VALUES,
    UncoveredPassError,
    address,
    in_c,
    raise_failure,
)
from spsbench.extensions.cpu.packing.memory import ALIGNED
from spsbench.extensions.cpu.replay.record import Instruction, OperandKind, Recording, results_in
from spsbench.extensions.cpu.warp import WarpRecord

STEP = 1 + 2 * STEP_ARGS + NUMBERS + REALS  # numbers of 8 bytes in the record of a step
N = 1 + 2 * STEP_ARGS  # where sizes begin in it
SHAPE = 4  # axes of a result, at most
MOST = 64  # sizes whose steps are kept


class Size(NamedTuple):
    """The size of a pass."""

    tokens: int
    kept: int


class Pass(Structure):
    """A record as in program.h."""

    _fields_ = (
        *(("bases", c_void_p), ("texts", c_void_p), ("cache_layers", c_void_p)),
        *(("count", c_int64), ("threads", c_int64)),
    )


class Draws(Structure):
    """The record `draws` of program.h, of a roll-out."""

    _fields_ = (
        *(("ids", c_void_p), ("u", c_void_p), ("first", c_void_p), ("made", c_void_p)),
        ("names", c_void_p),
        *(("passes", c_int64), ("tokens", c_int64), ("bytes", c_int64), ("narrow", c_int64)),
        ("warp", WarpRecord),
    )

    @classmethod
    def of(cls, rolled: RollOut, logits: Tensor, rows: Tensor) -> Self:
        """Return the record of the draws of a roll-out, over tensors that must outlive it.

        The first draw is from `logits` [..., V'] of one row, each later one from the row of `rows`
        [n, X] that the pass before it has made, from its number `rolled.start` on.
        """
        size = rows.itemsize
        return cls(
            *(rolled.ids.data_ptr(), rolled.u.data_ptr(), logits.data_ptr()),
            rows.data_ptr() + rolled.start * size,
            0 if rolled.names is None else rolled.names.data_ptr(),
            *(len(rolled.ids), rolled.tokens, rows.stride(0) * size),
            *(rows.dtype == torch.bfloat16, WarpRecord.of(rolled.warp)),
        )


class Operands(NamedTuple):
    """The operands of a pass, or of the first pass of a roll-out, apart from weights."""

    inputs: Sequence[Tensor]  # numbered as in the recording; those after the last read are unused
    tables: Sequence[Tensor]  # rows of functions of positions
    cache_layers: Sequence[Any]
    texts: Sequence[int]  # records of texts, for each kind of mask
    end: int  # tokens in the cache after the pass


class Affine:
    """An array of whole numbers `a + b tokens + c kept`, each with its own a, b and c.

    A step over the rows [m, 64] of a pass, a table of 70 rows beside them, and the logits [kept, V]
    of V = 96 have these numbers of elements; the fourth recording checks what three determine:

    >>> sizes = Size(16, 16), Size(6, 6), Size(6, 2), Size(9, 4)
    >>> recorded = [np.array([64 * m, 70, 96 * kept]) for m, kept in sizes]
    >>> Affine(sizes, recorded).at(Size(tokens=5, kept=1)).tolist()
    [320, 70, 96]

    Where every pass keeps all of its rows, two recordings determine a and b.
    """

    def __init__(self, sizes: Sequence[Size], arrays: Sequence[np.ndarray]) -> None:
        """Fit the first two or three `arrays`, of one shape, each recorded at one of `sizes`.

        UncoveredPassError: the others do not agree.
        """
        count = 3 if any(size.tokens != size.kept for size in sizes) else 2
        form = np.array([(1, *size)[:count] for size in sizes], float)
        stacked = np.stack(arrays).reshape(len(arrays), -1)
        parts = np.rint(np.linalg.solve(form[:count], stacked[:count]))
        if not np.array_equal(form @ parts, stacked):
            raise UncoveredPassError("numbers that are not affine in tokens")
        self._parts = [part.reshape(arrays[0].shape) for part in parts.astype(np.int64)]

    def at(self, size: Size) -> np.ndarray:
        """Return the numbers for a size."""
        parts = self._parts
        numbers: np.ndarray = parts[0] + parts[1] * size.tokens
        return numbers if len(parts) == 2 else numbers + parts[2] * size.kept


class Bound(NamedTuple):
    """The steps for one size."""

    steps: np.ndarray
    address: int  # where the steps begin
    scratch: int  # bytes
    shapes: Mapping[Any, tuple[int, ...]]  # by output


class PassProgram:
    """The steps of passes of any size that make some of the outputs; one pass at a time.

    Bases are those of program.h, then outputs, inputs, tables and weights. `recordings` have one
    pass each, of `sizes`; steps that none of the named `outputs` needs are left out. `dtypes` are
    those of the outputs, `inputs` is how many are read, `layers` are those of a `Recording`.
    UncoveredPassError: passes of other sizes are other computations.
    """

    def __init__(
        self, sizes: Sequence[Size], recordings: Sequence[Recording], outputs: Iterable[Any]
    ) -> None:
        first = recordings[0]
        if any(_form(other) != _form(first) for other in recordings[1:]):
            raise UncoveredPassError("passes of other operations for other sizes")
        self._outputs, self.layers = list(outputs), first.layers
        needed = _find_needed_steps(first, self._outputs)
        lists = [[recording.steps[n] for n in needed] for recording in recordings]
        steps = lists[0]
        args = [x for step in steps for x in step.args if x is not None]
        self.inputs = 1 + max((x.number for x in args if x.kind is OperandKind.INPUT), default=-1)
        self._results = {first.outputs[name]: n for n, name in enumerate(self._outputs)}
        of_inputs = FIRST + len(self._outputs)
        of_tables = of_inputs + self.inputs
        self._base_of = {
            OperandKind.KEYS: KEYS,
            OperandKind.VALUES: VALUES,
            OperandKind.INPUT: of_inputs,
            OperandKind.TABLE: of_tables,
            OperandKind.WEIGHT: of_tables + len(first.tables),
        }
        self._numbers = Affine(sizes, [self._records(part) for part in lists])
        self._fixed = np.zeros((len(steps), STEP), np.int64)
        self._fixed[:, 0] = [address(step.name) for step in steps]
        reals = np.zeros((len(steps), REALS))
        for row, step in zip(reals, steps, strict=True):
            row[: len(step.real)] = step.real
        self._fixed[:, -REALS:] = reals.view(np.int64)
        self._lay_out(sizes, recordings, steps)
        self._shapes = Affine(sizes, [_shapes(x, self._outputs) for x in recordings])
        self._axes = [len(first.shapes[name][0]) for name in self._outputs]
        self.dtypes = [first.shapes[name][1] for name in self._outputs]
        self._bound: dict[Size, Bound] = {}
        self._weights: Sequence[int] = ()
        self._bases: Any = ()
        self._cached: list[int] = []  # records of the texts' caches, for each layer
        self._cached_array: Any = (c_int64 * 0)()

    def _records(self, steps: Sequence[Instruction]) -> np.ndarray:
        """Return [steps, STEP] int64: for each operand a base and an offset, then the sizes."""
        records = np.zeros((len(steps), STEP), np.int64)
        for row, step in zip(records, steps, strict=True):
            for n, operand in enumerate(step.args):
                if operand is not None:
                    kind, number, offset = operand
                    base = self._base_of.get(kind, SCRATCH)
                    if kind is OperandKind.RESULT and number in self._results:
                        base = FIRST + self._results[number]
                    elif base > VALUES:
                        base += number
                    row[1 + 2 * n : 3 + 2 * n] = base, offset
            row[N : N + len(step.n)] = step.n
        return records

    def _lay_out(
        self, sizes: Sequence[Size], recordings: Sequence[Recording], steps: Sequence[Instruction]
    ) -> None:
        """Give each result that is no output a slot of memory, free again after its last reader.

        Only results of one size in the first recording share one. `sizes`: those recorded.
        Sets `_sizes`, of results slot by slot, `_starts`, of each slot in them, and `_in_slots`.
        """
        ends: dict[int, int] = {}
        for n, step in enumerate(steps):
            ends |= dict.fromkeys(results_in(step), n)
        slots: list[list[int]] = []
        free: list[int] = []
        slot_of: dict[int, int] = {}
        size_of = recordings[0].sizes
        for n, step in enumerate(steps):
            for number in sorted(step.writes - slot_of.keys() - self._results.keys()):
                fitting = [s for s in free if size_of[slots[s][0]] == size_of[number]]
                slot = fitting[0] if fitting else len(slots)
                if fitting:
                    free.remove(slot)
                else:
                    slots.append([])
                slots[slot].append(number)
                slot_of[number] = slot
            free += [slot_of[x] for x, end in ends.items() if end == n and x in slot_of]
        order = [number for slot in slots for number in slot]
        arrays = [np.array([x.sizes[n] for n in order], np.int64) for x in recordings]
        self._sizes, self._starts = Affine(sizes, arrays), np.cumsum([0, *map(len, slots)])[:-1]
        in_slots = [
            (n, 2 + 2 * k, slot_of[x.number])
            for n, step in enumerate(steps)
            for k, x in enumerate(step.args)
            if x is not None and x.kind is OperandKind.RESULT and x.number in slot_of
        ]
        self._in_slots = np.array(in_slots, np.int64).reshape(-1, 3).T

    def at(self, size: Size) -> Bound:
        """Return the steps for a size; those of up to `MOST` sizes are kept."""
        if size not in self._bound:
            if len(self._bound) >= MOST:
                self._bound.clear()
            self._bound[size] = self._bind(size)
        return self._bound[size]

    def _bind(self, size: Size) -> Bound:
        """Return the steps for passes of `size`, their scratch bytes, and result shapes."""
        steps, total = self._numbers.at(size) + self._fixed, 0
        rows, columns, slots = self._in_slots
        if len(rows):
            sizes = np.maximum.reduceat(self._sizes.at(size), self._starts)
            ends = np.cumsum(sizes + -sizes % ALIGNED)
            steps[rows, columns] += np.concatenate([[0], ends[:-1]])[slots]
            total = int(ends[-1])
        shapes = zip(self._outputs, self._shapes.at(size), self._axes, strict=True)
        result_shapes = {name: tuple(map(int, x[:axes])) for name, x, axes in shapes}
        return Bound(steps, steps.ctypes.data, total, result_shapes)

    def run(
        self,
        bound: Bound,
        scratch: "Scratch",
        outputs: Sequence[Tensor],
        operands: Operands,
        weights: Sequence[int],
        draws: Draws | None = None,
    ) -> None:
        """Fill `outputs` by a pass, or with `draws` by one after each; the cache's length stays.

        `bound` is for the size of a pass, `weights` are addresses; `scratch` grows if need be. All
        tensors of a roll-out go on by a row from pass to pass. Raises as `raise_failure`.
        """
        tensors = [*outputs, *operands.inputs[: self.inputs], *operands.tables]
        bases = 0, scratch.address(bound.scratch), 0, 0, *map(Tensor.data_ptr, tensors)
        if weights is not self._weights:
            self._weights = weights
            self._bases = (c_int64 * (len(bases) + len(weights)))(*bases, *weights)
        else:
            self._bases[: len(bases)] = bases
        cached = [number for layer in operands.cache_layers for number in layer.addresses]
        if cached != self._cached:
            self._cached, self._cached_array = cached, (c_int64 * len(cached))(*cached)
        count, text_array = len(operands.texts), (c_int64 * len(operands.texts))(*operands.texts)
        in_pass = Pass(
            *(addressof(self._bases), addressof(text_array), addressof(self._cached_array)),
            *(count // TEXT // len(self.layers), torch.get_num_threads()),
        )
        steps = bound.address, len(bound.steps), addressof(in_pass)
        if draws is None:
            raise_failure(in_c().run_steps(*steps))
            return
        advances = [0] * FIRST + [x.stride(0) * x.itemsize for x in tensors]
        strides = (c_int64 * len(bases))(*advances)
        raise_failure(
            in_c().roll_out(*steps, len(bases), addressof(strides), count // TEXT, addressof(draws))
        )


def _shapes(recording: Recording, outputs: Sequence[Any]) -> np.ndarray:
    shapes = [recording.shapes[name][0] for name in outputs]
    padded = [[*shape, *[0] * (SHAPE - len(shape))] for shape in shapes]
    return np.array(padded, np.int64).reshape(len(shapes), SHAPE)


def _form(recording: Recording) -> Any:
    """Return what recordings of all sizes must share: all but sizes, offsets and tables' rows."""
    steps = [
        (step.name, [x and x[:2] for x in step.args], len(step.n), step.real, step.writes)
        for step in recording.steps
    ]
    constants = [(x.dtype, x.tolist()) for x in recording.constants]
    return steps, recording.outputs, constants, recording.layers, len(recording.tables)


def _find_needed_steps(recording: Recording, outputs: Sequence[Any]) -> list[int]:
    """Return the numbers, rising, of steps that `outputs`, and keys and values, need."""
    needed = {recording.outputs[name] for name in outputs}
    kept = []
    for n, step in reversed(list(enumerate(recording.steps))):
        if step.name == "put" or step.writes & needed:
            kept.append(n)
            needed.update(results_in(step))
    return kept[::-1]


class Scratch:
    """Memory for what steps make, the same for all programs of a model."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def address(self, size: int) -> int:
        """Return the aligned address of so many bytes; making room loses former content."""
        if len(self._memory) < size + ALIGNED:
            self._memory = torch.empty(size + ALIGNED, dtype=torch.uint8, device="cpu")
        start = self._memory.data_ptr()
        return start + -start % ALIGNED
