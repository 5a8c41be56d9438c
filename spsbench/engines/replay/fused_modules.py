"""Norms by one kernel each: transformers writes that by the mean square out as nine operators."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

from spsbench.engines.kernels.native import KINDS
from spsbench.engines.kernels.operators import in_c
from spsbench.engines.packing.linear_layers import OverStock, exchange_each

EARLY, LATE, PLUS = 1, 0, 2  # narrowed before the weight too, only after it, and over 1 + weight


class Norm(OverStock):
    """The same function as the norm that it takes the place of, by a kernel of `norms.c`.

    A row is the same numbers in any pass. `stock` has a weight in a dtype of `KINDS`, on the CPU.
    """

    def __init__(self, stock: Any) -> None:
        super().__init__(stock)
        self.weight = stock.weight


class RmsNorm(Norm):
    """RMS norm by one kernel; `way_of` gives the rounding of `stock`."""

    def __init__(self, stock: Any) -> None:
        super().__init__(stock)
        self.eps, self.way = eps_of(stock), way_of(stock)

    def forward(self, x: Tensor) -> Any:
        """Return [..., width] normalised."""
        norm = in_c("norm")
        if norm is None or x.dtype != self.weight.dtype:
            return self._stock[0](x)
        return norm(x.contiguous(), self.weight, self.eps, self.way)


class LayerNorm(Norm):
    """Layer norm by one kernel, for a `stock` that `module_is_layer_norm` accepts."""

    def __init__(self, stock: Any) -> None:
        super().__init__(stock)
        self.bias, self.eps = stock.bias, float(stock.eps)

    def forward(self, x: Tensor) -> Any:
        """Return [..., width] normalised."""
        norm = in_c("layer_norm")
        if norm is None or x.dtype != self.weight.dtype:
            return self._stock[0](x)
        return norm(x.contiguous(), self.weight, self.bias, self.eps)


def exchange_norms(model: nn.Module) -> None:
    """Put one kernel in the place of each norm that it computes, in all of `model`."""
    exchange_each(model, _kind_for)


def _kind_for(module: nn.Module) -> type[Norm] | None:
    """Return the replacement of a norm; None: no kernel computes it."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.dtype not in KINDS:
        return None
    centred = module_is_layer_norm(module)
    known = centred or way_of(module) is not None
    if not known or in_c("norm") is None:  # which may have to be compiled
        return None
    return LayerNorm if centred else RmsNorm


def module_is_layer_norm(module: nn.Module) -> bool:
    """Return whether it is torch's own, over rows, with weight and bias of one kind."""
    plain = type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
    return plain and module.bias is not None and module.bias.dtype == module.weight.dtype


def eps_of(module: Any) -> float | None:
    """Return the epsilon of a norm, under the names that transformers uses."""
    found = getattr(module, "variance_epsilon", None)
    return found if found is not None else getattr(module, "eps", None)


def way_of(module: nn.Module) -> int | None:
    """Return the kind of RMS norm as norms.c numbers it; None: it is none."""
    kind: Any = type(module)
    named = kind.__name__.endswith("RMSNorm") and eps_of(module) is not None
    return _way(kind) if named else None


@cache
def _way(kind: Any) -> int | None:
    """Return how a norm rounds bfloat16, by trial of an instance."""
    x = torch.linspace(-2, 3, 2048, dtype=torch.bfloat16).reshape(32, 64)
    try:
        with torch.no_grad():
            module = kind(64, eps=0.25).bfloat16()
            module.weight.copy_(torch.linspace(-1, 2, 64))
            made = module(x)
            wrong = {way: _wrong(made, x, module.weight, way) for way in (EARLY, LATE, PLUS)}
    except Exception:  # another constructor, or foreign code
        return None
    best = min(wrong, key=wrong.__getitem__)
    return best if wrong[best] < 0.01 else None


def _wrong(made: Tensor, x: Tensor, weight: Tensor, way: int) -> float:
    """Return the share of `made` that this way does not give."""
    wide = x.float()
    even = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 0.25)
    if way == EARLY:
        even = even.to(x.dtype).float()
    exact = ((weight.float() + (way == PLUS)) * even).to(x.dtype)
    return float((made != exact).float().mean())


OPERATORS = {
    nn.SiLU: "silu",
    SiLUActivation: "silu",
    nn.ReLU: "relu",
    GELUActivation: "gelu",
    NewGELUActivation: "gelu_tanh",
    GELUTanh: "gelu_tanh",
}


class Activation(OverStock):
    """The same function as the activation that it takes the place of, by `activations.c`."""

    def __init__(self, stock: nn.Module) -> None:
        """Replace `stock`, whose class is in `OPERATORS`."""
        super().__init__(stock)
        self.operator = OPERATORS[type(stock)]

    def forward(self, x: Tensor) -> Any:
        """Return the activation of [...]."""
        operator = in_c(self.operator)
        if operator is not None and x.dtype in KINDS and x.device.type == "cpu":
            return operator(x.contiguous())
        if type(self._stock[0]) is NewGELUActivation:
            return gelu(x, approximate="tanh")  # one operator where there are eight
        return self._stock[0](x)


def exchange_activations(model: nn.Module) -> None:
    """Put one kernel in the place of each activation that it computes, in all of `model`."""
    exchange_each(model, lambda module: Activation if type(module) in OPERATORS else None)
