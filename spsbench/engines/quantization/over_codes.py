"""Linear layers `x W^T + b` whose W is in codes."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from spsbench.engines.origins import origin_of
from spsbench.engines.quantization.codes import Codes, Format

BLOCK = 2**22  # numbers made of codes at once


class OverCodes(nn.Module, ABC):
    """However the codes lie."""

    out_features: int
    in_features: int
    group: int  # inputs that share a scale
    bits: int
    least: bool  # there are minima
    bias: nn.Parameter | None
    origin: str | None = None  # files, and how W was made of them; None: unknown

    @property
    @abstractmethod
    def codes(self) -> Codes:
        """W."""


class QuantisedLinear(OverCodes):
    """Makes each block of W anew: right anywhere, slow.

    Engines exchange it: `eager` for plain layers (`dequantise`), `fast` for its own kernel.
    """

    def __init__(self, codes: Codes, bias: Tensor | None, origin: str | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = codes.numbers.shape
        self.group, self.bits, self.least = codes.group, codes.bits, codes.minima is not None
        self.numbers = nn.Parameter(codes.numbers, requires_grad=False)
        self.scales = nn.Parameter(codes.scales, requires_grad=False)
        least = codes.minima
        self.minima = least if least is None else nn.Parameter(least, requires_grad=False)
        self.bias = bias if bias is None else nn.Parameter(bias, requires_grad=False)
        self.origin = origin

    @property
    def codes(self) -> Codes:
        """W."""
        least = None if self.minima is None else self.minima.detach()
        return Codes(self.numbers.detach(), self.scales.detach(), self.group, self.bits, least)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], summed in float32 or wider."""
        wide = torch.promote_types(x.dtype, torch.float32)
        codes, step = self.codes, max(1, BLOCK // self.in_features)
        parts = [
            linear(x.to(wide), codes.dense(wide, slice(start, start + step)))
            for start in range(0, self.out_features, step)
        ]
        made = torch.cat(parts, -1)
        return (made if self.bias is None else made + self.bias.to(wide)).to(x.dtype)


class LateCodes(OverCodes):
    """Weights that are rounded when somebody asks for their codes: kept panels spare it.

    Args:
        layer: `nn.Linear` or `Conv1D`.
        kind: how it is to be quantised.
    """

    least = False

    def __init__(self, layer: Any, kind: Format) -> None:
        super().__init__()
        self.kind, self.bias, self.weight = kind, layer.bias, layer.weight
        self._turned = isinstance(layer, Conv1D)
        self.out_features, self.in_features = self._rows.shape
        self.group, self.bits = kind.group or self.in_features, kind.bits

    @property
    def origin(self) -> str | None:  # type: ignore[override]
        """As the weight has it now."""
        origin = origin_of(self.weight)
        return None if origin is None else f"{origin} {self.kind}"

    @property
    def _rows(self) -> Tensor:
        """[out, in]."""
        weight: Tensor = self.weight
        return weight.t() if self._turned else weight

    @property
    def codes(self) -> Codes:
        """W, made anew."""
        return Codes.of(self._rows, self.kind)

    def written(self) -> QuantisedLinear:
        """The same over codes that are in memory."""
        return QuantisedLinear(self.codes, self.bias, self.origin)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        made: Tensor = self.written()(x)
        return made
