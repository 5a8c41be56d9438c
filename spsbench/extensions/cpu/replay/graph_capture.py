"""Capture what a layer asks of torch, once, as operations that C runs one after another.

A layer is run with its real inputs while torch tells of every operator it calls. Views are but
places in memory; of the rest each has a kernel, or the layer is refused. Nothing may depend on the
values of tensors, nor on how long the past is, except attention, which is told.
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
KNOWN = (attention.__file__, __file__)  # whose course is the same for any past


class Given(NamedTuple):
    """The inputs of a layer."""

    tensors: Sequence[Tensor]  # hidden states first; as many tokens in every pass
    span: Tensor  # [past + m], only its length is used
    seen: Tensor  # [n] of it
    keys: Tensor  # [1, heads, room, width]
    values: Tensor
    state: Sequence[Tensor]  # weights

    def all(self) -> tuple[Tensor, ...]:
        """Return all tensors in order."""
        return (*self.tensors, self.span, self.seen, self.keys, self.values, *self.state)


class Listing(NamedTuple):
    """A layer's operations."""

    steps: Sequence[Step]
    result: Tensor
    made: Mapping[int, Tensor]  # by storage: what operations have made


def have_addresses(state: Iterable[Tensor]) -> bool:
    """Return whether C can read all of `state`: none is in a layout of another library."""
    return all(tensor.layout == torch.strided for tensor in state)


def capture(run: Callable[..., Any], given: Given) -> Listing:
    """Capture the operations of `run`, which is called with all inputs.

    Raises:
        RefusedError: it does something else.
    """
    if not have_addresses(given.state):
        raise RefusedError("weights in a layout of another library")
    watch = Watch(given)
    with _SameControlFlow(given), watch:
        made = run(*given.all())
    if not isinstance(made, Tensor):
        raise RefusedError("a result that is no tensor")
    return listed(watch.steps, made, watch.made)


def listed(steps: Sequence[Step], made: Tensor, every: Mapping[int, Tensor]) -> Listing:
    """Return the listing of operations that end in `made`.

    Raises:
        RefusedError: it is a part of something else.
    """
    whole = made.is_contiguous() and made.untyped_storage().nbytes() == made.nbytes
    if not (whole and storage_of(made) in every):
        raise RefusedError("a result that is no operation's own")
    return Listing(with_factors(steps), made, every)


def with_factors(steps: Sequence[Step]) -> list[Step]:
    """Return `steps` where an activation multiplies by the factor that alone follows it.

    Each product has the bits that it has in two steps.
    """
    reads = Counter(storage_of(x) for step in steps for x in step.at if x is not None)
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else step
        name, _, kind = last.name.rpartition("_")
        if name in ACTIVATIONS and step.name == f"mul_{kind}" and len(last.at) == 2:
            tensors: Any = *last.at, *step.at
            given, made, own, factor, out = tensors
            alike = len({(x.numel(), x.is_contiguous()) for x in tensors}) == 1
            if alike and where(own) == where(made) and reads[storage_of(made)] == 2:
                found[-1] = last._replace(at=(given, out, factor))
                continue
        found.append(step)
    return found


class _SameControlFlow(TorchFunctionMode):
    """Guard against control flow that depends on values or on the length."""

    def __init__(self, given: Given) -> None:
        super().__init__()
        masks = [tensor for tensor in given.tensors if tensor.ndim == AXES]
        self.past = {storage_of(tensor) for tensor in (given.keys, given.values, *masks)}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in VALUES and asker() != linear_layers.__file__:
            raise RefusedError("its course depends on values")
        if func in SIZES and storage_of(args[0]) in self.past and asker() not in KNOWN:
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

    def __init__(self, given: Given) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = given
        self.steps: list[Step] = []
        self.made: dict[int, Tensor] = {}  # by storage; kept, so that no address is used again
        self.views: list[Tensor] = []  # of keys and values, as attention reads them
        self.there = {storage_of(tensor) for tensor in (*given.tensors, *given.state)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        out = func(*args, **kwargs)
        self.note(func, args, kwargs, out)
        return out

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write down an operator that was called.

        Raises:
            RefusedError: there is no kernel for it.
        """
        space, name = func._schema.name.split("::")
        ours = is_ours(space)
        known = OURS.get(name) if ours else OF_TORCH.get(name) if space == "aten" else None
        if ours and name == "put":
            self._put(args, out)
        elif self._is_view(func, out):
            pass
        elif known is None:
            raise RefusedError(f"{func._schema.name}, for which there is no kernel")
        else:
            if ours and name == "attend":
                self._check_attention(*args[:4])
            self._add(known(out, *args, **kwargs), out)

    def _is_view(self, func: Any, out: Any) -> bool:
        """Return whether nothing was computed: the results lie in what was there."""
        found = [storage_of(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        known = all(storage in self.there or storage in self.made for storage in found)
        return bool(found) and known and not func._schema.is_mutable

    def _add(self, steps: Sequence[Step], out: Any) -> None:
        for tensor in tree_leaves(out):
            if tensor.dtype not in KINDS or tensor.device.type != "cpu":
                raise RefusedError(f"numbers in {tensor.dtype} on {tensor.device}")
            self.made[storage_of(tensor)] = tensor
        self.steps += steps

    def _put(self, args: Sequence[Any], out: Sequence[Tensor]) -> None:
        own = self.given
        told = args[0] is own.keys, args[1] is own.values, args[4] is own.span, args[5] is own.seen
        if not all(told):
            raise RefusedError("another cache than its own")
        for room, rows in (own.keys, args[2]), (own.values, args[3]):
            _, heads, count, width = rows.shape
            n = heads, count, width, *rows.stride()[1:3], rows.itemsize
            self.steps.append(Step("put", (room, rows), n))
        self.views = list(out)

    def _check_attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> None:
        """Check that keys and values are the cache's, and the mask the given one."""
        whole = [where(tensor) for tensor in self.views]
        if [where(key), where(value)] != whole:
            raise RefusedError("attention over other keys than those of the cache")
        masks = [where(tensor) for tensor in self.given.tensors if tensor.ndim == AXES]
        if present(mask) is not None and where(mask) not in masks:
            raise RefusedError("attention under a mask of its own")


class CaptureCache(Cache):  # type: ignore[misc]
    """Writes at the end of the span, whatever its length is in a replay.

    Args:
        span: [past + m], only its length is used.
        seen: [n] of it, what the layer reads: less where it has a window.
        keys: [1, heads, capacity, width], and `values`: where they are written.
    """

    def __init__(self, span: Tensor, seen: Tensor, keys: Tensor, values: Tensor) -> None:
        self.layers: list[Any] = []
        self.span, self.seen, self.keys, self.values = span, seen, keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, heads, m, width]` after what is there; views of keys and values to read."""
        put = in_c("put")
        if put is not None and _fits(self.keys, key_states) and _fits(self.values, value_states):
            made: Any = put(self.keys, self.values, key_states, value_states, self.span, self.seen)
            keys, values = made
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
