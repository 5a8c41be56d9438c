"""Capture the operators that a layer calls, once, as operations that C runs one after another.

A layer runs with its real inputs while a dispatch mode records every operator. Views are only
places in memory; every other operator has a kernel, or the layer is refused. Nothing may depend on
the values of tensors, nor on the length of the past, except attention, which gets the length.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Cache

from spsbench.engines import linear_layers
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.operators import in_c, is_ours
from spsbench.extensions.cpu.replay import attention
from spsbench.extensions.cpu.replay.operations import (
    ACTIVATIONS,
    AXES,
    OF_TORCH,
    OURS,
    RefusedError,
    Step,
    present,
)

VALUES = frozenset(
    ("tolist", "numpy", "item", "__array__", "__bool__", "__int__", "__float__", "__index__")
)
"""Methods that make the values of a tensor known to Python."""

SHAPE: Any = Tensor.shape
SIZES = (SHAPE.__get__, Tensor.size, Tensor.__len__, Tensor.numel)
TORCH = str(Path(torch.__file__).parent)
SAME_FOR_ANY_PAST = (attention.__file__, __file__)  # files whose control flow is so


class LayerInputs(NamedTuple):
    """The inputs of a layer."""

    tensors: Sequence[Tensor]  # hidden states first; as many tokens in every pass
    span: Tensor  # [past + m], only its length is used
    window: Tensor  # [n] of it
    keys: Tensor  # [1, heads, room, width]
    values: Tensor
    state: Sequence[Tensor]  # weights

    def all(self) -> tuple[Tensor, ...]:
        """Return all tensors in order."""
        return (*self.tensors, self.span, self.window, self.keys, self.values, *self.state)


class Listing(NamedTuple):
    """A layer's operations."""

    steps: Sequence[Step]
    result: Tensor
    outputs: Mapping[int, Tensor]  # by storage: results of operations


def have_addresses(state: Iterable[Tensor]) -> bool:
    """Return whether C can read all of `state`: none is in a layout of another library."""
    return all(tensor.layout == torch.strided for tensor in state)


def capture(run: Callable[..., Any], inputs: LayerInputs) -> Listing:
    """Capture the operations of `run`, which is called with all inputs.

    Raises:
        RefusedError: an operator has no kernel, or the result is no tensor.
    """
    if not have_addresses(inputs.state):
        raise RefusedError("weights in a layout of another library")
    watch = Watch(inputs)
    with _SameControlFlow(inputs), watch:
        result = run(*inputs.all())
    if not isinstance(result, Tensor):
        raise RefusedError("a result that is no tensor")
    return listed(watch.steps, result, watch.outputs)


def listed(steps: Sequence[Step], result: Tensor, outputs: Mapping[int, Tensor]) -> Listing:
    """Return the listing of operations that end in `result`.

    Raises:
        RefusedError: `result` is no operation's own tensor.
    """
    whole = result.is_contiguous() and result.untyped_storage().nbytes() == result.nbytes
    if not (whole and storage_of(result) in outputs):
        raise RefusedError("a result that is no operation's own")
    return Listing(with_factors(steps), result, outputs)


def with_factors(steps: Sequence[Step]) -> list[Step]:
    """Return `steps` where an activation multiplies by the factor that alone follows it.

    Each product has the bits that it has in two steps.
    """
    reads = Counter(storage_of(x) for step in steps for x in step.at if x is not None)
    fused: list[Step] = []
    for step in steps:
        last = fused[-1] if fused else step
        name, _, kind = last.name.rpartition("_")
        if name in ACTIVATIONS and step.name == f"mul_{kind}" and len(last.at) == 2:
            tensors: Any = *last.at, *step.at
            argument, activated, multiplied, factor, out = tensors
            alike = len({(x.numel(), x.is_contiguous()) for x in tensors}) == 1
            if (
                alike
                and where(multiplied) == where(activated)
                and reads[storage_of(activated)] == 2
            ):
                fused[-1] = last._replace(at=(argument, out, factor))
                continue
        fused.append(step)
    return fused


class _SameControlFlow(TorchFunctionMode):
    """Guard against control flow that depends on values or on the length."""

    def __init__(self, inputs: LayerInputs) -> None:
        super().__init__()
        masks = [tensor for tensor in inputs.tensors if tensor.ndim == AXES]
        self.past = {storage_of(tensor) for tensor in (inputs.keys, inputs.values, *masks)}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in VALUES and asker() != linear_layers.__file__:
            raise RefusedError("its course depends on values")
        if func in SIZES and storage_of(args[0]) in self.past and asker() not in SAME_FOR_ANY_PAST:
            raise RefusedError("its course may depend on the length of the past")
        return func(*args, **(kwargs or {}))


def asker() -> str:
    """Return the file of the code that called torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename


class Watch(TorchDispatchMode):
    """Recorder of operators, which run as well."""

    def __init__(self, inputs: LayerInputs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.steps: list[Step] = []
        self.outputs: dict[int, Tensor] = {}  # by storage; kept, so that no address is used again
        self.views: list[Tensor] = []  # of keys and values, as attention reads them
        self.input_storages = {storage_of(tensor) for tensor in (*inputs.tensors, *inputs.state)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        out = func(*args, **kwargs)
        self.record(func, args, kwargs, out)
        return out

    def record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator that was called.

        Raises:
            RefusedError: there is no kernel for it.
        """
        space, name = func._schema.name.split("::")
        ours = is_ours(space)
        build_steps = OURS.get(name) if ours else OF_TORCH.get(name) if space == "aten" else None
        if ours and name == "put":
            self._put(args, out)
        elif self._is_view(func, out):
            pass
        elif build_steps is None:
            raise RefusedError(f"{func._schema.name}, for which there is no kernel")
        else:
            if ours and name == "attend":
                self._check_attention(*args[:4])
            self._add(build_steps(out, *args, **kwargs), out)

    def _is_view(self, func: Any, out: Any) -> bool:
        """Return whether nothing was computed: the results are views of existing tensors."""
        storages = [storage_of(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        existing = all(
            storage in self.input_storages or storage in self.outputs for storage in storages
        )
        return bool(storages) and existing and not func._schema.is_mutable

    def _add(self, steps: Sequence[Step], out: Any) -> None:
        for tensor in tree_leaves(out):
            if tensor.dtype not in KINDS or tensor.device.type != "cpu":
                raise RefusedError(f"numbers in {tensor.dtype} on {tensor.device}")
            self.outputs[storage_of(tensor)] = tensor
        self.steps += steps

    def _put(self, args: Sequence[Any], out: Sequence[Tensor]) -> None:
        inputs = self.inputs
        matches = (
            args[0] is inputs.keys,
            args[1] is inputs.values,
            args[4] is inputs.span,
            args[5] is inputs.window,
        )
        if not all(matches):
            raise RefusedError("another cache than its own")
        for room, rows in (inputs.keys, args[2]), (inputs.values, args[3]):
            _, heads, count, width = rows.shape
            n = heads, count, width, *rows.stride()[1:3], rows.itemsize
            self.steps.append(Step("put", (room, rows), n))
        self.views = list(out)

    def _check_attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> None:
        """Check that keys and values are the cache's, and the mask the given one."""
        whole = [where(tensor) for tensor in self.views]
        if [where(key), where(value)] != whole:
            raise RefusedError("attention over other keys than those of the cache")
        masks = [where(tensor) for tensor in self.inputs.tensors if tensor.ndim == AXES]
        if present(mask) is not None and where(mask) not in masks:
            raise RefusedError("attention under a mask of its own")


class CaptureCache(Cache):  # type: ignore[misc]
    """Writes at the end of the span, whatever its length is in a replay.

    Args:
        span: [past + m], only its length is used.
        window: [n] of it, what the layer reads: less where it has a sliding window.
        keys: [1, heads, capacity, width], and `values`: where they are written.
    """

    def __init__(self, span: Tensor, window: Tensor, keys: Tensor, values: Tensor) -> None:
        self.layers: list[Any] = []
        self.span, self.window, self.keys, self.values = span, window, keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, heads, m, width]`; return views of the keys and values to read."""
        put = in_c("put")
        if put is not None and _fits(self.keys, key_states) and _fits(self.values, value_states):
            views: Any = put(
                self.keys, self.values, key_states, value_states, self.span, self.window
            )
            keys, values = views
            return keys, values
        raise RefusedError("keys and values that no kernel writes")

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Raise, since the length differs in every replay.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a layer asks how many tokens are cached")


def _fits(room: Tensor, states: Tensor) -> bool:
    """Return whether the operator can write `states` into `room`."""
    kinds = room.dtype == states.dtype and room.dtype in KINDS and room.device == states.device
    rows = states.ndim == room.ndim == 4 and states.stride(-1) == room.stride(-1) == 1
    return kinds and rows and len(states) == len(room) == 1 and room.device == torch.device("cpu")


def storage_of(tensor: Tensor) -> int:
    """Return the address of the memory that views have in common."""
    return tensor.untyped_storage().data_ptr()


def where(tensor: Tensor) -> tuple[Any, ...]:
    """Return the address, shape and strides of `tensor`, equal for identical views."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
