"""Norms, activations and rotations by one kernel each, where transformers has many operators.

Norms and activations are exchanged once; rotations, which are functions of a module of
transformers, while a layer is captured. A rotation computes the same bits.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

from spsbench.engines.linear_layers import OverStock, exchange_each
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import BoundOperator, available

EARLY, LATE, PLUS = 1, 0, 2  # narrowed before the weight too, only after it, and over 1 + weight


class Norm(OverStock):
    """The same function as the norm that it takes the place of, by a kernel of `norms.c`.

    A row is the same numbers in any pass. `stock` has a weight in a dtype of `KINDS`, on the CPU.
    """

    def __init__(self, stock: Any) -> None:
        """Replace a layer norm, or an RMS norm, whose rounding `way_of` gives."""
        super().__init__(stock)
        self.weight, self.bias = stock.weight, getattr(stock, "bias", None)
        self._dtype, centred = stock.weight.dtype, module_is_layer_norm(stock)
        self._adds_bias = self.bias is not None and not centred
        how = (self.bias, float(stock.eps)) if centred else (eps_of(stock), way_of(stock))
        self._normalise = BoundOperator("layer_norm" if centred else "norm", self.weight, *how)

    def forward(self, x: Tensor) -> Any:
        """Return [..., width] normalised; in another dtype than the weight's by the stock norm."""
        if x.dtype != self._dtype:
            return self._stock[0](x)
        normalised = self._normalise(x.contiguous())
        return normalised + self.bias if self._adds_bias else normalised


def exchange_norms(model: nn.Module) -> None:
    """Put one kernel in the place of each norm that it computes, in all of `model`."""
    exchange_each(model, _kind_for)


def _kind_for(module: nn.Module) -> type[Norm] | None:
    """Return `Norm` for a norm on the CPU that a kernel computes; None: another, or no kernels."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.dtype not in KINDS:
        return None
    is_norm = module_is_layer_norm(module) or way_of(module) is not None
    return Norm if is_norm and available() else None  # kernels may have to be compiled


def module_is_layer_norm(module: nn.Module) -> bool:
    """Return whether `module` is torch's layer norm, over rows, weight and bias of one dtype."""
    plain = type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
    return plain and module.bias is not None and module.bias.dtype == module.weight.dtype


def eps_of(module: Any) -> float | None:
    """Return the epsilon of a norm, under the names that transformers uses."""
    epsilon = getattr(module, "variance_epsilon", None)
    return epsilon if epsilon is not None else getattr(module, "eps", None)


def way_of(module: nn.Module) -> int | None:
    """Return the kind of RMS norm as norms.c numbers it; None: `module` is of no such kind."""
    kind: Any = type(module)
    is_rms_norm = kind.__name__.endswith("RMSNorm") and eps_of(module) is not None
    return _way(kind) if is_rms_norm else None


@cache
def _way(kind: Any) -> int | None:
    """Try class `kind`: return EARLY, LATE or PLUS; None: no kind agrees, or the trial fails."""
    x = torch.linspace(-2, 3, 2048, dtype=torch.bfloat16).reshape(32, 64)
    try:
        with torch.no_grad():
            module = kind(64, eps=0.25).bfloat16()
            module.weight.copy_(torch.linspace(-1, 2, 64))
            normalised = module(x)
            wrong = {
                way: _mismatch_share(normalised, x, module.weight, way)
                for way in (EARLY, LATE, PLUS)
            }
    except Exception:  # another constructor, or foreign code
        return None
    best = min(wrong, key=wrong.__getitem__)
    return best if wrong[best] < 0.01 else None


def _mismatch_share(normalised: Tensor, x: Tensor, weight: Tensor, way: int) -> float:
    """Return the share of `normalised` that differs from norm `way` of `x` with epsilon 0.25."""
    wide = x.float()
    even = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 0.25)
    if way == EARLY:
        even = even.to(x.dtype).float()
    exact = ((weight.float() + (way == PLUS)) * even).to(x.dtype)
    return float((normalised != exact).float().mean())


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
        self._activate = BoundOperator(OPERATORS[type(stock)])

    def forward(self, x: Tensor) -> Any:
        """Return the activation of [...], by the kernel where it can, else by torch."""
        if x.dtype in KINDS and x.device.type == "cpu" and available():
            return self._activate(x.contiguous())
        if type(self._stock[0]) is NewGELUActivation:
            return gelu(x, approximate="tanh")  # one operator where there are eight
        return self._stock[0](x)


def exchange_activations(model: nn.Module) -> None:
    """Put one kernel in the place of each activation that it computes, in all of `model`."""
    exchange_each(model, lambda module: Activation if type(module) in OPERATORS else None)


NAME = "apply_rotary_pos_emb"  # as modules of transformers call it

Rotation = Callable[..., tuple[Tensor, Tensor]]

_rotate = BoundOperator("rotate")


@contextmanager
def one_rotation(layer: nn.Module) -> Iterator[None]:
    """Exchange rotation functions in `layer`'s Python modules, if `usual`, within the block."""
    with ExitStack() as stack:
        for module in {sys.modules.get(type(part).__module__) for part in layer.modules()}:
            stock = getattr(module, NAME, None)
            done = isinstance(stock, partial) and stock.func is rotate  # by another pass
            if stock is not None and not done and usual(stock):
                stack.callback(setattr, module, NAME, stock)
                setattr(module, NAME, partial(rotate, stock))
        yield


def rotate(
    stock: Rotation, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return [1, heads, m, D] `q`, `k` rotated by tables [1, m, D]; other inputs, by `stock`."""
    if args or kwargs or not (_fits(q, cos, sin) and _fits(k, cos, sin)):
        return stock(q, k, cos, sin, *args, **kwargs)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _fits(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Return whether the kernel can read these."""
    tables = cos.shape == sin.shape == (1, *x.shape[2:]) and cos.is_contiguous()
    kinds = x.dtype == cos.dtype == sin.dtype and x.dtype in KINDS and x.device.type == "cpu"
    rows = x.ndim == 4 and len(x) == 1 and x.stride(-1) == 1 and x.shape[-1] % 2 == 0
    return rows and kinds and tables and sin.is_contiguous()


@cache
def usual(stock: Rotation) -> bool:
    """Return whether `stock` rotates, bit for bit, as the operator does; false if a trial fails."""
    if not available():
        return False
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, n, 3, 16, generator=generator) for n in (4, 2))
    cos, sin = (torch.randn(1, 3, 16, generator=generator) for _ in range(2))
    try:
        for kind in KINDS:
            inputs = [x.to(kind) for x in (q, k, cos, sin)]
            pairs = zip(stock(*inputs), rotate(stock, *inputs), strict=True)
            if not all(torch.equal(one, other) for one, other in pairs):
                return False
        return True
    except Exception:  # other arguments, or foreign code
        return False
