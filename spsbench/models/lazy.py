"""Tensors of a checkpoint that are read when they are asked for, and widened piece by piece.

transformers keeps a checkpoint mapped until all of it is loaded: with a conversion that is one more
copy of the whole model in memory. Here it is one piece of one tensor for each reading thread.
"""

from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

PIECE = 16 << 20  # bytes of the widened tensor
_NARROW = ("BF16", "F16")


class LazyTensor:
    """One tensor of a file, as float32 when `widen` says so.

    `[...]` reads all of it, slices a part: the share of a rank.
    """

    def __init__(self, view: Any, *, widen: bool) -> None:
        self._view = view
        self._widen = widen and view.get_dtype() in _NARROW

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
        if not self._widen or not shape or 0 in shape:
            whole: Tensor = self._view[...]
            return whole
        wide = torch.empty(shape, dtype=torch.float32)
        rows = max(1, PIECE // wide[0].nbytes)
        for start in range(0, shape[0], rows):
            end = min(start + rows, shape[0])
            wide[start:end] = self._view[start:end]
        return wide


def lazy_tensors(files: list[Path], *, widen: bool) -> dict[str, LazyTensor]:
    """Every tensor of the safetensors `files` by name."""
    tensors: dict[str, LazyTensor] = {}
    for path in files:
        # Read, not mapped: mapped pages of the file would count as memory of the process.
        file: Any = safe_open(path, framework="pt", backend="pread")
        tensors.update({n: LazyTensor(file.get_slice(n), widen=widen) for n in file.keys()})  # noqa: SIM118
    return tensors
