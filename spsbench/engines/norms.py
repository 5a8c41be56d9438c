"""Norms by the root of the mean square, which transformers writes out as nine operators, in one."""

from copy import deepcopy
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from spsbench.engines.linears import StandIn, hooked
from spsbench.engines.native import KINDS
from spsbench.engines.operators import in_c

NARROW = (torch.float32, torch.bfloat16, torch.float16)  # what norms compute in float32


class RmsNorm(StandIn):
    """The same function as the norm that it takes the place of, by the kernel of `norms.c`.

    A row is the same number in any pass.
    """

    def __init__(self, stock: Any) -> None:
        """`stock` is as `module_is_rms_norm` tells, in a dtype of `KINDS`, on the CPU."""
        super().__init__()
        self.weight = stock.weight
        self.variance_epsilon: float = stock.variance_epsilon
        self._stock = [stock]  # in a list: it is no part of this one

    def forward(self, x: Tensor) -> Any:
        """[..., width] -> [..., width]."""
        norm = in_c("norm")
        if norm is None or x.dtype != self.weight.dtype:
            return self._stock[0](x)
        return norm(x.contiguous(), self.weight, self.variance_epsilon)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied: nn.Module = deepcopy(self._stock[0], memo)
        return copied


def exchange_norms(model: nn.Module) -> None:
    """Put one operator in the place of nine, in all of `model`, where there are kernels."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not hooked(child) and module_is_rms_norm(child):
                weight: Any = child.weight
                known = weight.device.type == "cpu" and weight.dtype in KINDS
                if known and in_c("norm") is not None:  # which may have to be compiled
                    setattr(parent, name, RmsNorm(child))


def module_is_rms_norm(module: nn.Module) -> bool:
    """Whether it is the usual norm, in a dtype for which transformers computes it in float32."""
    kind: Any = type(module)
    weight = getattr(module, "weight", None)
    named = kind.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
    return named and weight is not None and weight.dtype in NARROW and usual(kind)


@cache
def usual(kind: Any) -> bool:
    """Whether `kind` computes `rms_norm`, by trial of one of its own on the CPU."""
    x = torch.linspace(-2, 3, 24).reshape(3, 8)
    try:
        with torch.no_grad():
            module = kind(8, eps=0.25)
            module.weight.copy_(torch.linspace(-1, 2, 8))
            ours = one_norm(module)(x)
            return torch.allclose(module(x), ours, rtol=1e-5, atol=1e-6)
    except Exception:  # another constructor, or foreign code
        return False


def one_norm(module: nn.Module) -> Any:
    """The forward of an RMS norm as one operator of torch's own."""
    weight, eps = cast(Tensor, module.weight), cast(float, module.variance_epsilon)
    stock = type(module).forward

    def forward(x: Tensor) -> Any:
        if x.dtype != weight.dtype:
            return stock(module, x)
        return rms_norm(x, weight.shape, weight, eps)

    return forward
