"""Tensors of a checkpoint that are read when they are asked for, and widened piece by piece.

transformers keeps a checkpoint mapped until all of it is loaded: with a conversion that is one more
copy of the whole model in memory. Here it is one piece of one tensor for each reading thread.

An engine that lays weights out anew reads each once: it is spared the copy, and gets tensors that
are parts of the file, each mapped by itself and given up as soon as it has been laid out.
"""

import mmap
import resource
from contextlib import suppress
from pathlib import Path
from types import EllipsisType
from typing import Any
from weakref import ref

import torch
from safetensors import safe_open
from torch import Tensor, nn

from spsbench.models.weights import read_headers

OTHERS = 128  # files that a process has open beside the parts of a model
PIECE = 16 << 20  # bytes of the widened tensor
_NARROW = ("BF16", "F16")
_MAPPED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_PARTS: dict[int, "ref[mmap.mmap]"] = {}
"""Where parts of files lie in memory, for as long as they do."""


class LazyTensor:
    """One tensor of a file, as float32 when `widen` says so.

    `[...]` reads all of it, slices a part: the share of a rank.

    Args:
        view: what safetensors opens.
        widen: to float32.
        source: its file and its bytes there, if it need not be copied.
    """

    def __init__(self, view: Any, *, widen: bool, source: tuple[Path, range] | None = None) -> None:
        self._view = view
        self._widen = widen and view.get_dtype() in _NARROW
        self._source = source

    def get_shape(self) -> list[int]:
        """The sizes of its axes."""
        return list(self._view.get_shape())

    def get_dtype(self) -> str:
        """The safetensors name of what `[...]` returns."""
        return "F32" if self._widen else str(self._view.get_dtype())

    def __getitem__(self, index: EllipsisType | tuple[slice, ...]) -> Tensor:
        if index is not ...:
            part: Tensor = self._view[index]
            return part.float() if self._widen else part
        shape = self.get_shape()
        kind = _MAPPED.get(str(self._view.get_dtype()))
        mapped = None if self._source is None or kind is None else _part(*self._source, kind)
        if mapped is not None:
            return mapped.view(shape).float() if self._widen else mapped.view(shape)
        if not self._widen or not shape or 0 in shape:
            whole: Tensor = self._view[...]
            return whole
        wide = torch.empty(shape, dtype=torch.float32)
        rows = max(1, PIECE // wide[0].nbytes)
        for start in range(0, shape[0], rows):
            end = min(start + rows, shape[0])
            wide[start:end] = self._view[start:end]
        return wide


def _part(path: Path, span: range, dtype: torch.dtype) -> Tensor | None:
    """A tensor over a part of a file, which nobody should write meanwhile; None: it cannot be."""
    before = span.start % mmap.ALLOCATIONGRANULARITY
    if not span or before % dtype.itemsize:
        return None
    with path.open("rb") as file:
        # A copy on write: what is written here by mistake is not written to the file.
        part = mmap.mmap(
            file.fileno(), len(span) + before, access=mmap.ACCESS_COPY, offset=span.start - before
        )
    tensor = torch.frombuffer(part, dtype=dtype, offset=before)
    _PARTS[tensor.untyped_storage().data_ptr()] = ref(part)
    return tensor


def _may_open(count: int) -> bool:
    """Whether this process may have so many files open, as each part is one; asks to be let."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least >= count or least == resource.RLIM_INFINITY:
        return True
    with suppress(OSError, ValueError):  # more than it is allowed
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
        return True
    return False


def lazy_tensors(files: list[Path], *, widen: bool, mapped: bool = False) -> dict[str, LazyTensor]:
    """Every tensor of the safetensors `files` by name; `mapped`: as parts of them, if possible."""
    tensors: dict[str, LazyTensor] = {}
    headers = read_headers(files) if mapped else {}
    mapped = mapped and _may_open(len(headers) + OTHERS)
    for path in files:
        # Read, not mapped: mapped pages of the file would count as memory of the process.
        file: Any = safe_open(path, framework="pt", backend="pread")
        for name in file.keys():  # noqa: SIM118
            source = (path, headers[name].span) if mapped else None
            tensors[name] = LazyTensor(file.get_slice(name), widen=widen, source=source)
    return tensors


@torch.no_grad()
def settle(model: nn.Module) -> None:
    """Copy what is still a part of a file: files may change, and their pages are small."""
    for tensor in (*model.parameters(), *model.buffers()):
        # A rank's share and oneDNN's blocks are copies already, and have no address to ask for.
        if type(tensor.data) is not Tensor or tensor.layout != torch.strided:
            continue
        part = _PARTS.get(tensor.untyped_storage().data_ptr())
        if part is not None and part() is not None:
            tensor.data = tensor.data.clone()
