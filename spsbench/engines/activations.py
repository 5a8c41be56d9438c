"""Activations by one kernel each; GELU by its tanh is eight operators in transformers."""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.activations import (
    GELUActivation,
    GELUTanh,
    NewGELUActivation,
    SiLUActivation,
)

from spsbench.engines.linears import StandIn, hooked
from spsbench.engines.native import KINDS
from spsbench.engines.operators import in_c

OPERATORS = {
    nn.SiLU: "silu",
    SiLUActivation: "silu",
    nn.ReLU: "relu",
    GELUActivation: "gelu",
    NewGELUActivation: "gelu_tanh",
    GELUTanh: "gelu_tanh",
}


class Activation(StandIn):
    """The same function as the activation that it takes the place of, by `activations.c`."""

    def __init__(self, stock: nn.Module) -> None:
        """`stock` is of a class in `OPERATORS`."""
        super().__init__()
        self.operator = OPERATORS[type(stock)]
        self._stock = [stock]  # in a list: it is no part of this one

    def forward(self, x: Tensor) -> Any:
        """[...] -> [...]."""
        operator = in_c(self.operator)
        if operator is not None and x.dtype in KINDS and x.device.type == "cpu":
            return operator(x.contiguous())
        if type(self._stock[0]) is NewGELUActivation:
            return gelu(x, approximate="tanh")  # one operator where there are eight
        return self._stock[0](x)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied: nn.Module = deepcopy(self._stock[0], memo)
        return copied


def exchange_activations(model: nn.Module) -> None:
    """Put one kernel in the place of each activation that it computes, in all of `model`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in OPERATORS and not hooked(child):
                setattr(parent, name, Activation(child))
