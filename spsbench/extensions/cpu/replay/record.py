"""Record a pass: the operators that it calls, as steps whose operands have names.

An operand is made by a step, or is an input, a row of a function of positions, a weight, a
constant, or a layer's keys or values. A view is only a place in one of these. What has no kernel,
or depends on the values of tensors, is refused. `merge_products` and `fuse_factors` join steps.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache

from spsbench.engines import linear_layers
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import (
    ACTIVATIONS,
    MANY,
    OF_TORCH,
    OPERATORS,
    Call,
    UncoveredPassError,
    active_recorder,
    run_now,
    run_op,
)
from spsbench.extensions.cpu.replay import attention

PRODUCTS = "product_", "halves_", "tiles_", "dots_"  # how their steps' names begin
MASK = 3  # which operand of attention
VALUES = frozenset(
    ("tolist", "numpy", "item", "__array__", "__bool__", "__int__", "__float__", "__index__")
)
"""Methods that make the values of a tensor known to Python."""

SHAPE: Any = Tensor.shape
SIZES = (SHAPE.__get__, Tensor.size, Tensor.__len__, Tensor.numel)
TORCH = str(Path(torch.__file__).parent)
SAME_FOR_ANY_PAST = attention.__file__, __file__  # files whose control flow is so
_no_function_mode: Any = torch._C.DisableTorchFunction


def storage_of(tensor: Tensor) -> int:
    """Return the address of the memory that views have in common."""
    return tensor.untyped_storage().data_ptr()


def where(tensor: Tensor) -> tuple[Any, ...]:
    """Return the address, shape and strides of `tensor`, equal for identical views."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


class OperandKind(Enum):
    """The kind of tensor in which an operand lies."""

    RESULT = auto()  # a result of a step
    INPUT = auto()
    TABLE = auto()  # rows of a function of positions
    WEIGHT = auto()  # or a constant, numbered after the weights
    KEYS = auto()  # the keys of a layer of the cache
    VALUES = auto()


class Operand(NamedTuple):
    """A place in a tensor, by the name of the tensor."""

    kind: OperandKind
    number: int
    offset: int  # bytes


class Instruction(NamedTuple):
    """A step over names."""

    name: str
    args: tuple[Operand | None, ...]
    n: tuple[int, ...]
    real: tuple[float, ...]
    writes: frozenset[int]  # numbers of what it makes; none: it writes into the cache


class Recording(NamedTuple):
    """A pass as steps."""

    steps: list[Instruction]
    sizes: list[int]  # bytes of what is made, by number
    outputs: dict[Any, int]  # name -> number of what is made
    shapes: dict[Any, tuple[tuple[int, ...], torch.dtype]]  # by output
    tables: list[Tensor]  # functions of positions that are read
    calls: list[Any]  # torch's that made these: function, arguments, result
    constants: list[Tensor]  # numbered after the weights
    layers: list[int]  # by kind of mask: the number of a layer that uses it; -1: none


class RecordingCache(Cache):  # type: ignore[misc]
    """Keys and values by layer, written by an operator that a recorder notes."""

    def __init__(self, length: int) -> None:
        self.length = length  # tokens before the pass
        self.past: dict[int, tuple[Tensor, Tensor]] = {}  # [1, heads, n, width], by layer
        self.storages: dict[int, tuple[OperandKind, int]] = {}  # -> the layer's place in past
        self.layers: list[Any] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int = 0, *args: Any, **more: Any
    ) -> Any:
        """Write [1, heads, m, width] after `length` rows of zeros; return all keys and values."""
        end = self.length + key_states.shape[2]
        if layer_idx not in self.past:
            sizes = [(1, x.shape[1], end, x.shape[-1]) for x in (key_states, value_states)]
            keys, values = (torch.zeros(size, dtype=key_states.dtype) for size in sizes)
            number, self.past[layer_idx] = len(self.past), (keys, values)
            self.storages[storage_of(keys)] = OperandKind.KEYS, number
            self.storages[storage_of(values)] = OperandKind.VALUES, number
        keys, values = self.past[layer_idx]
        run_op("put", keys, key_states, end)
        run_op("put", values, value_states, end)
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, *args: Any, **more: Any) -> int:
        """Return the tokens before the pass, which differ between recordings."""
        return self.length


class Recorder(TorchDispatchMode):
    """Notes operators. Those of torch run as well; of ours, those that no input reaches.

    The values of `inputs` differ between passes. `positions` are [m] of the pass; None: nothing is
    a function of them. `masks` has one for each kind of mask, `weights` what steps may read;
    `cache` is that of the pass.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        positions: Tensor | None,
        masks: Sequence[Tensor],
        weights: Sequence[Tensor],
        cache: RecordingCache | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs, self._masks = inputs, [where(x) for x in masks]
        self._steps: list[tuple[Call, set[int]]] = []  # and storages of what each makes
        self._made: dict[int, int] = {}  # by storage: its number
        self._sizes: list[int] = []
        self._calls: list[Any] = []
        self._tables: list[Tensor] = []
        self._constants: list[Tensor] = []
        self._alive: list[Any] = []  # no address is used again
        self._paused = False
        self._changing = {storage_of(x) for x in inputs}
        self._of_positions = set() if positions is None else {storage_of(positions)}
        self._weights: dict[int, list[tuple[int, int, int]]] = {}  # by storage: begin, end, number
        self._weight_count = len(weights)
        for number, x in enumerate(weights):
            if x.numel():
                place = x.data_ptr(), x.data_ptr() + x.nbytes, number
                self._weights.setdefault(storage_of(x), []).append(place)
        self.past = {} if cache is None else cache.storages
        self._unread = {storage_of(x) for x in masks}
        self._layers = [-1] * max(1, len(masks))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        with _no_function_mode():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            out = func(*args, **kwargs)
            self._note(func, args, kwargs, out, None)
            return out

    def run(self, name: str, *arguments: Any) -> Any:
        """Note our operator `name`; return its result, unfilled where an input reaches it."""
        self._paused = True
        try:
            with _no_function_mode():
                reads = {storage_of(x) for x in arguments if isinstance(x, Tensor)}
                skipped = not reads.isdisjoint(self._changing)
                out, step = OPERATORS[name](*arguments) if skipped else run_now(name, *arguments)
                self._note(partial(run_op, name), arguments, {}, out, [step])
        finally:
            self._paused = False
        return out

    def _note(
        self, func: Any, args: Any, kwargs: Any, out: Any, steps: Sequence[Call] | None
    ) -> None:
        """Note a call that an input reaches as steps, one that only positions reach as a call.

        `steps` are those of our operators; None: torch's, which has none for a view. Others are not
        noted. UncoveredPassError: no kernel.
        """
        self._alive.append((out, args))
        read = [storage_of(x) for x in _tensors_in((*args, *kwargs.values()))]
        results = {storage_of(x) for x in _tensors_in(out)}
        if any(storage in self._changing for storage in read):
            if steps is None:
                if results <= set(read) and results and not func._schema.is_mutable:
                    return  # a view
                space, name = func._schema.name.split("::")
                if space != "aten" or name not in OF_TORCH or func._schema.is_mutable:
                    raise UncoveredPassError(f"{func._schema.name}, for which there is no kernel")
                steps = OF_TORCH[name](out, *args, **kwargs)
            self._add(steps, out)
        elif any(storage in self._of_positions for storage in read):
            self._of_positions |= results
            self._calls.append((func, args, kwargs, out))

    def _add(self, steps: Sequence[Call], out: Any) -> None:
        """Add steps and their results; UncoveredPassError: a dtype or device without kernels."""
        results = list(_tensors_in(out))
        for x in results:
            if x.dtype not in KINDS or x.device.type != "cpu":
                raise UncoveredPassError(f"numbers in {x.dtype} on {x.device}")
            self._made[storage_of(x)] = len(self._sizes)
            self._sizes.append(x.untyped_storage().nbytes())
        storages = {storage_of(x) for x in results}
        self._changing |= storages
        self._steps += [(step, storages) for step in steps]

    def finish(self, outputs: Mapping[Any, Tensor]) -> Recording:
        """Return what was recorded, which makes `outputs`, with products merged and factors fused.

        UncoveredPassError: a step reads what has no name; an output is no step's own result.
        """
        steps = fuse_factors(merge_products([self._named(*step) for step in self._steps]))
        for x in outputs.values():
            is_result = isinstance(x, Tensor) and x.is_contiguous() and storage_of(x) in self._made
            if not is_result or x.untyped_storage().nbytes() != x.nbytes:
                raise UncoveredPassError("a result that is no operation's own")
        return Recording(
            steps,
            self._sizes,
            {name: self._made[storage_of(x)] for name, x in outputs.items()},
            {name: (tuple(x.shape), x.dtype) for name, x in outputs.items()},
            *(self._tables, self._calls, self._constants, self._layers),
        )

    def _named(self, step: Call, storages: set[int]) -> Instruction:
        """Return a call with named operands instead of tensors; `storages` are its results'.

        The numbers `n` of a step over the cache end with those of layer and mask.
        """
        n, args = step.n, step.args
        if step.past is not None:
            layer, mask = self._in_cache(step)
            n = *n, *[0] * (6 - len(n)), layer, mask
            args = (*args[:MASK], None, *args[MASK + 1 :]) if step.name != "put" else args
        operands = tuple(None if x is None else self._operand(x, step.past) for x in args)
        writes = frozenset(self._made[storage] for storage in storages)
        return Instruction(step.name, operands, n, step.real, writes)

    def _in_cache(self, step: Call) -> tuple[int, int]:
        """Return the numbers of the layer and the mask of a step over the cache; of `put` mask 0.

        The first layer under each mask is noted. UncoveredPassError: other keys or values than the
        cache's of one layer, no mask, or one that is not the pass's.
        """
        puts = step.name == "put"
        tensors: Any = step.args[:1] if puts else step.args[1:3]
        read = [self.past.get(storage_of(x), (None, -1)) for x in tensors]
        layer = read[0][1]
        kinds = OperandKind.KEYS, OperandKind.VALUES
        if layer < 0 or (not puts and read != [(kind, layer) for kind in kinds]):
            raise UncoveredPassError("attention over other keys than those of the cache")
        if puts:
            return layer, 0
        mask = step.args[MASK]
        if mask is None or where(mask) not in self._masks:
            raise UncoveredPassError("attention under a mask of its own")
        number = self._masks.index(where(mask))
        self._layers[number] = layer if self._layers[number] < 0 else self._layers[number]
        return layer, number

    def _operand(self, x: Tensor, past: Any) -> Operand:
        """Return the place of a tensor; a table or constant that is new gets a number.

        Keys and values have one in steps over the cache: `past` is not None. UncoveredPassError:
        keys, values or a mask in others, or a tensor that is no input, result, function of
        positions, weight or single number.
        """
        storage, at = storage_of(x), x.data_ptr()
        if storage in self._made:
            return Operand(OperandKind.RESULT, self._made[storage], at - storage)
        if storage in self.past and past is not None:
            return Operand(*self.past[storage], 0)
        if storage in self._unread or storage in self.past:
            raise UncoveredPassError("keys, values or masks in another operation than attention")
        for number, tensor in enumerate(self._inputs):
            if storage == storage_of(tensor):
                return Operand(OperandKind.INPUT, number, at - tensor.data_ptr())
        if storage in self._of_positions:
            return Operand(OperandKind.TABLE, _number_of(x, self._tables), 0)
        for begin, end, number in self._weights.get(storage, ()):
            if begin <= at < end:
                return Operand(OperandKind.WEIGHT, number, at - begin)
        if x.numel() > 1:
            raise UncoveredPassError("an operation over what was not given")
        return Operand(OperandKind.WEIGHT, self._weight_count + _number_of(x, self._constants), 0)


def _tensors_in(x: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results: a recording calls this for every operator."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for part in x:
            yield from _tensors_in(part)


def _number_of(x: Tensor, views: list[Tensor]) -> int:
    """Return the index of a view in `views`, to which it is added if it is new."""
    places = [where(view) for view in views]
    if where(x) not in places:
        views.append(x)
        return len(places)
    return places.index(where(x))


def record(body: Callable[[], Mapping[Any, Tensor]], recorder: Recorder) -> Recording:
    """Return the recording of `body`, which returns its outputs by name.

    Python's collector of cycles waits: a walk through all objects takes longer than a recording,
    whose many objects would call for it. UncoveredPassError: the pass cannot be steps.
    """
    collects, outer = gc.isenabled(), active_recorder.set(recorder)
    gc.disable()
    try:
        with _SameControlFlow(recorder.past.keys()), recorder:
            outputs = body()
        return recorder.finish(outputs)
    finally:
        active_recorder.reset(outer)
        if collects:
            gc.enable()


class _SameControlFlow(TorchFunctionMode):
    """Guard against control flow that depends on values, or on the length of the past."""

    def __init__(self, past: Any) -> None:
        super().__init__()
        self._past = past  # storages of keys and values

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in VALUES and _asker() != linear_layers.__file__:
            raise UncoveredPassError("its control flow depends on values")
        asks = func in SIZES and storage_of(args[0]) in self._past
        if asks and _asker() not in SAME_FOR_ANY_PAST:
            raise UncoveredPassError("its control flow may depend on the length of the past")
        return func(*args, **(kwargs or {}))


def _asker() -> str:
    """Return the file of the code that called torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename


def merge_products(steps: Sequence[Instruction]) -> list[Instruction]:
    """Return `steps` where up to `MANY` products of the same inputs are one, as early as the first.

    A call, and a wait for all threads, is then there once; the numbers are the same.
    """
    merged: list[Instruction] = []
    latest: dict[Any, int] = {}  # by kernel, inputs and sizes: which of `merged`
    for step in steps:
        if not step.name.startswith(PRODUCTS):
            merged.append(step)
            continue
        key = step.name, step.args[0], step.n[:2], step.n[2 + MANY :]
        number = latest.get(key)
        count = 0 if number is None else sum(out > 0 for out in merged[number].n[2 : 2 + MANY])
        if number is None or count == MANY:
            latest[key] = len(merged)
            merged.append(step)
            continue
        first = merged[number]
        args, n = list(first.args), list(first.n)
        for role in range(3):  # panels, biases, results
            args[1 + role * MANY + count] = step.args[1 + role * MANY]
        n[2 + count] = step.n[2]
        writes = first.writes | step.writes
        merged[number] = first._replace(args=tuple(args), n=tuple(n), writes=writes)
    return merged


def fuse_factors(steps: Sequence[Instruction]) -> list[Instruction]:
    """Return `steps` where an activation that only a product reads multiplies by its factor, too.

    Each product has the bits that it has in two steps.
    """
    reads = Counter(n for step in steps for n in set(results_in(step)) - step.writes)
    fused: list[Instruction] = []
    for step in steps:
        last = fused[-1] if fused else step
        name, _, kind = last.name.rpartition("_")
        if name in ACTIVATIONS and step.name == f"mul_{kind}" and len(last.args) == 2:
            argument, activated = last.args
            multiplied, factor, out = step.args
            sizes, count = step.n[:4], last.n[0]
            strides = [step.n[i : i + 4] for i in (4, 8, 12)]
            dense = strides == [_dense(sizes)] * 3 and prod(sizes) == count
            alone = activated is not None and reads[activated.number] == 1
            if dense and alone and multiplied == activated and factor != activated:
                fused[-1] = last._replace(args=(argument, out, factor), writes=step.writes)
                continue
        fused.append(step)
    return fused


def results_in(step: Instruction) -> list[int]:
    """Return the numbers of the results of steps among the arguments of `step`, its own too."""
    return [x.number for x in step.args if x is not None and x.kind is OperandKind.RESULT]


def _dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, 0 for axes of one number."""
    return tuple(prod(sizes[n + 1 :]) if size > 1 else 0 for n, size in enumerate(sizes))
