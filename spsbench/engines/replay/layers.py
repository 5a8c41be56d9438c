"""The list of a decoder's layers, and which of them are the same computation."""

import copy
from typing import Any

from torch import nn

from spsbench.engines.replay.tape import Tape


class Layers(nn.ModuleList):
    """A part of which is a plain list within a pass: transformers takes one of all in each."""

    tape: Tape

    def __getitem__(self, index: Any) -> Any:
        """A layer, or some."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        some = list(self)[index]
        return nn.ModuleList(some) if self.tape.cache is None else some

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.ModuleList:
        return nn.ModuleList(copy.deepcopy(list(self), memo))


def quicken(layers: nn.ModuleList, tape: Tape) -> None:
    """Make a list of layers one whose parts are plain while `tape` replays."""
    if type(layers) in (nn.ModuleList, Layers):
        layers.__class__ = Layers
        layers.tape = tape  # type: ignore[assignment]


def signature(layer: nn.Module) -> tuple[Any, ...]:
    """Equal for layers that are the same computation: modules, their settings, their tensors."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        plain = (int, float, bool, str, type(None))
        settings = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
        settings.pop("layer_idx", None)
        found.append((name, type(module), *sorted(settings.items(), key=lambda item: item[0])))
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        found.append((name, tuple(tensor.shape), tensor.dtype, tensor.layout))
    return tuple(found)
