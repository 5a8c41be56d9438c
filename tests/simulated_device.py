"""A device that is not there: tensors on it compute on the CPU and cannot be read unnoticed.

Its tensors say that they are on the device "meta" and hold a CPU tensor. What CUDA would refuse is
refused (operands on two devices), and what would make the host wait raises, unless it is done
within `reading()`: reading a value, indexing with a mask, a blocking copy in either direction.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

FAR = torch.device("meta")
READS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "unique_dim"}
COPIES = {"_to_copy", "copy_"}


class HostWaitsError(BaseException):
    """The host would wait for the device. No `except Exception` may hide it."""


class Far(Tensor):
    """A tensor on the simulated device."""

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        with torch.inference_mode(False):  # views of wrappers made in that mode are refused
            return torch.Tensor._make_wrapper_subclass(
                cls, near.shape, strides=near.stride(), dtype=near.dtype, device=FAR
            )

    def __init__(self, near: Tensor) -> None:
        self.near = near

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"Far({self.near})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise HostWaitsError(f"{func} outside the simulation")


class SimulatedDevice(TorchDispatchMode):
    """While it is active, tensors made on `FAR` are simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.uploads = 0
        self._may_read = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Here the host may wait."""
        before, self._may_read = self._may_read, True
        try:
            yield
        finally:
            self._may_read = before

    def wait(self, why: str) -> None:
        if not self._may_read:
            raise HostWaitsError(why)
        self.reads += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with self:  # in inference mode composite operators come whole
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        name = func.__name__.split(".")[0]
        tensors = list(tensors_in((args, kwargs)))
        far = [x for x in tensors if isinstance(x, Far)]
        near = [x for x in tensors if not isinstance(x, Far)]
        if any(x.device == FAR and x.numel() for x in near):
            raise HostWaitsError("a tensor was uploaded from Python's numbers, which waits")
        wanted = kwargs.get("device")
        if name in COPIES:
            self._copied(name, args, kwargs, wanted)
        elif far:
            self._check(name, [x for x in near if x.device != FAR], args)
        if wanted is not None and torch.device(wanted) == FAR:
            kwargs["device"] = torch.device("cpu")
        was_far = any(x.device == FAR for x in near)  # made of no numbers: torch.tensor([])
        own = {id(x.near): x for x in far}
        inner = mapped(within, (args, kwargs))
        out = func(*inner[0], **inner[1])
        on_far = bool(far or was_far) if wanted is None else torch.device(wanted) == FAR
        if not on_far:
            return out

        def back(x: Any) -> Any:
            return own[id(x)] if id(x) in own else Far(x) if isinstance(x, Tensor) else x

        return mapped(back, out)

    def _copied(self, name: str, args: Any, kwargs: Any, wanted: Any) -> None:
        """Copies between host and device."""
        if name == "copy_":
            target, source = isinstance(args[0], Far), isinstance(args[1], Far)
            free = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        else:
            source = isinstance(args[0], Far)
            target = source if wanted is None else torch.device(wanted) == FAR
            free = kwargs.get("non_blocking", False)
        size = args[1].numel() if name == "copy_" else args[0].numel()
        if target == source or size == 0:
            return
        if source:
            self.wait("the host reads a tensor of the device")
        elif not free:
            self.wait("a blocking upload")
        else:
            self.uploads += 1

    def _check(self, name: str, near: list[Tensor], args: Any) -> None:
        if name in READS:
            self.wait(f"{name} reads the device")
        if name.startswith("index"):
            indices = list(tensors_in(args[1:]))
            if any(x.dtype == torch.bool for x in indices):
                self.wait("a mask as an index reads the device")
            if any(x is i for x in near for i in indices):
                self.wait("an index of the host is uploaded, blocking")
        if any(x.dim() > 0 for x in near):
            raise RuntimeError(f"{name}: operands on the device and on the host")


def tensors_in(x: Any) -> Iterator[Tensor]:
    """All tensors of an operator's arguments."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list | dict):
        for part in x.values() if isinstance(x, dict) else x:
            yield from tensors_in(part)


def mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """`x` with every leaf changed."""
    if isinstance(x, dict):
        return {key: mapped(change, part) for key, part in x.items()}
    return type(x)(mapped(change, part) for part in x) if type(x) in (tuple, list) else change(x)


def within(x: Any) -> Any:
    """What the simulation computes with."""
    if isinstance(x, Far):
        return x.near
    if isinstance(x, Tensor) and x.device == FAR:
        return torch.empty(x.shape, dtype=x.dtype)
    return x


def moved(module: nn.Module) -> nn.Module:
    """The module with weights and buffers on the simulated device, in place."""
    known: dict[int, tuple[Tensor, Far]] = {}  # with the originals, lest an id is used again
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for name, value in store.items():
                if value is not None:
                    _, store[name] = known.setdefault(id(value), (value, Far(value.detach())))
    return module
