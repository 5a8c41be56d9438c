"""Layers of experts over panels: only the experts that a pass needs are read.

The products of a chosen expert run over panels, an expert a block of them, so that a token's
numbers do not depend on the other tokens of the pass.
"""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.experts import COUNTED, STOCK, count_experts, expert_modules
from spsbench.engines.linear_layers import StandIn
from spsbench.extensions.cpu.kernels.steps import BoundOperator
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import PanelLinear, blocks_of_panels, most_bytes
from spsbench.extensions.cpu.packing.tuning import prefetch_arguments, prefetch_of


class PackedExperts(StandIn):
    """The experts of a layer over panels `[E, out / 32, in / c, 32, c]`."""

    def __init__(self, stock: Any) -> None:
        """Take the weights out of `stock`, and keep its activation."""
        super().__init__()
        self.stock = stock
        self.outputs: dict[str, int] = {}
        self._products: dict[str, list[BoundOperator]] = {}  # by expert
        self._places: dict[str, int] = {}  # addresses that these products read
        for name in expert_weight_names(stock):
            weight = by_output(stock, name)
            self.outputs[name] = weight.shape[1]
            setattr(self, name, nn.Parameter(blocks_of_panels(weight), requires_grad=False))
            setattr(stock, name, None)

    def forward(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return [m, D], sums of experts `ids` [m, k] weighted by `weights` [m, k]; count `ids`."""
        stock, (first, last) = self.stock, expert_weight_names(self.stock)
        chosen = count_experts(ids).flatten()
        order = chosen.argsort(stable=True)
        counts = sorted(Counter(chosen.tolist()).items())
        x = self._product(first, hidden[order // ids.shape[1]], counts)  # [m k, ...]
        x = stock._apply_gate(x) if stock.has_gate else stock.act_fn(x)
        x = self._product(last, x.contiguous(), counts)
        products = torch.empty_like(x).index_copy_(0, order, x) * weights.reshape(-1, 1)
        return products.view(*ids.shape, -1).sum(1).to(hidden.dtype)

    def _product(self, name: str, x: Tensor, counts: Sequence[tuple[int, int]]) -> Tensor:
        """Return products of `x`, sorted by expert, by weights `name`; `counts`: (expert, rows)."""
        panels, stock = getattr(self, name), self.stock
        if self._places.get(name) != panels.data_ptr():  # a model may be moved
            biases = getattr(stock, f"{name}_bias").data if stock.has_bias else [None] * len(panels)
            how = self.outputs[name], *prefetch_arguments(prefetch_of(panels.dtype))
            pairs = zip(panels.data, biases, strict=True)
            self._products[name] = [BoundOperator("product", *pair, *how) for pair in pairs]
            self._places[name] = panels.data_ptr()
        parts = torch.split(x, [count for _, count in counts])
        pairs = zip(counts, parts, strict=True)
        return torch.cat([self._products[name][expert](rows) for (expert, _), rows in pairs])

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied = deepcopy(self.stock, memo)
        for name, out in self.outputs.items():
            dense = getattr(self, name).transpose(2, 3).flatten(1, 2).flatten(2)[:, :out]
            dense = dense.transpose(1, 2) if copied.is_transposed else dense
            setattr(copied, name, nn.Parameter(dense.clone(), requires_grad=False))
        return copied  # type: ignore[no-any-return]


def expert_shapes(model: PreTrainedModel) -> set[str]:
    """Return shapes "OUTxIN" of experts' weights; empty: no experts, or some cannot be packed."""
    shapes: set[str] = set()
    how = getattr(model.config.get_text_config(), "_experts_implementation", None)
    for *_, module in expert_modules(model) if how in (STOCK, COUNTED) else ():
        if module.has_post_expert_norm or module._is_expert_parallel or module._forward_hooks:
            return set()
        for name in expert_weight_names(module):
            weight = by_output(module, name)
            if weight.device.type != "cpu" or PanelLinear.refuses(weight[0]):
                return set()
            shapes.add("{1}x{2}".format(*weight.shape))
    return shapes


def pack_experts(model: PreTrainedModel) -> None:
    """Replace each layer of experts of `model` by `PackedExperts`, one layer after the other."""
    layers = list(expert_modules(model))
    weights = (by_output(module, n) for *_, module in layers for n in expert_weight_names(module))
    with huge_pages(sum(len(weight) * most_bytes(weight[0]) for weight in weights)):
        for parent, name, module in layers:
            setattr(parent, name, PackedExperts(module))


def expert_weight_names(module: Any) -> tuple[str, str]:
    """Return the weights of experts in the order in which they are used."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def by_output(module: Any, name: str) -> Tensor:
    """Return the weights as [E, out, in], a view."""
    weight: Tensor = getattr(module, name).detach()
    return weight.transpose(1, 2) if module.is_transposed else weight
