"""Activations by one kernel each; GELU by its tanh is eight operators in transformers."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.activations import (
    GELUActivation,
    GELUTanh,
    NewGELUActivation,
    SiLUActivation,
)

from spsbench.engines.kernels.native import KINDS
from spsbench.engines.kernels.operators import in_c
from spsbench.engines.packing.linear_layers import OverStock, exchange_each

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
        """`stock` is of a class in `OPERATORS`."""
        super().__init__(stock)
        self.operator = OPERATORS[type(stock)]

    def forward(self, x: Tensor) -> Any:
        """[...] -> [...]."""
        operator = in_c(self.operator)
        if operator is not None and x.dtype in KINDS and x.device.type == "cpu":
            return operator(x.contiguous())
        if type(self._stock[0]) is NewGELUActivation:
            return gelu(x, approximate="tanh")  # one operator where there are eight
        return self._stock[0](x)


def exchange_activations(model: nn.Module) -> None:
    """Put one kernel in the place of each activation that it computes, in all of `model`."""
    exchange_each(model, lambda module: Activation if type(module) in OPERATORS else None)
