"""Tensors of a checkpoint that are read on access, and widened piece by piece.

transformers keeps a checkpoint mapped until all of it is loaded: with a conversion that is one more
copy of the whole model in memory. Here it is one piece of one tensor for each reading thread.

An engine that packs weights reads each once. Tensors may be parts of the mapped file until
`settle`, which spares the engine a copy in fresh memory that costs more than packing itself.
"""

from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

PIECE = 16 << 20  # bytes of the widened tensor
_NARROW = ("BF16", "F16")
_PARTS: set[int] = set()
"""Addresses of tensors that are parts of files; one too many costs a copy."""


class LazyTensor:
    """A tensor of a file, as float32 when `widen` is set.

    `[...]` reads all of it, slices a part: the share of a rank.

    Args:
        view: what safetensors opens.
        widen: to float32.
        mapped: it is a part of a mapped file.
    """

    def __init__(self, view: Any, *, widen: bool, mapped: bool = False) -> None:
        self._view, self._mapped = view, mapped
        self._widen = widen and view.get_dtype() in _NARROW

    def get_shape(self) -> list[int]:
        """Return the sizes of the tensor's axes."""
        return list(self._view.get_shape())

    def get_dtype(self) -> str:
        """Return the safetensors name of what `[...]` returns."""
        return "F32" if self._widen else str(self._view.get_dtype())

    def __getitem__(self, index: EllipsisType | tuple[slice, ...]) -> Tensor:
        if index is not ...:
            part: Tensor = self._view[index]
            return part.float() if self._widen else part
        shape = self.get_shape()
        if not self._widen or not shape or 0 in shape:
            whole: Tensor = self._view[...]
            if self._mapped:
                _PARTS.add(whole.data_ptr())
            return whole
        wide = torch.empty(shape, dtype=torch.float32)
        rows = max(1, PIECE // wide[0].nbytes)
        for start in range(0, shape[0], rows):
            end = min(start + rows, shape[0])
            wide[start:end] = self._view[start:end]
        return wide


def lazy_tensors(files: list[Path], *, widen: bool, mapped: bool = False) -> dict[str, LazyTensor]:
    """Return every tensor of the safetensors `files` by name; `mapped`: as parts of them."""
    tensors: dict[str, LazyTensor] = {}
    for path in files:
        # Elsewhere read: mapped pages of the file would count as memory of the process.
        how = {} if mapped else {"backend": "pread"}
        file: Any = safe_open(path, framework="pt", **how)
        for name in file.keys():  # noqa: SIM118
            tensors[name] = LazyTensor(file.get_slice(name), widen=widen, mapped=mapped)
    return tensors


@torch.no_grad()
def settle(model: nn.Module) -> None:
    """Copy the tensors of `model` that are still parts of a file, which may change."""
    for tensor in (*model.parameters(), *model.buffers()):
        # A rank's share and oneDNN's blocks are copies already, and have no address to ask for.
        plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
        if plain and tensor.data_ptr() in _PARTS:
            tensor.data = tensor.data.clone()
    _PARTS.clear()
