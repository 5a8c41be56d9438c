"""The linear layers of a model, and their replacements over packed weights."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class StandIn(nn.Module):
    """Replacement of a stock module; a deep copy of it is the stock module again."""


class OverStock(StandIn):
    """Replacement that keeps the stock module."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self._stock = [stock]  # in a list: it is no part of this one

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied: nn.Module = deepcopy(self._stock[0], memo)
        return copied


class Packed(StandIn, ABC):
    """`x W^T + b` over W in another order.

    A kind of layout sets `weight`, and has `forward` and all that follows.
    """

    weight: nn.Parameter

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    @abstractmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Return why `weight` [out, in], on the CPU, cannot be laid out so here; None: it can."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return W [out, in]."""

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Return rows [n] of W, [n, in]."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return stock_linear(self.dense(), deepcopy(self.bias))


class PackedEmbedding(StandIn):
    """Rows read out of a packed head, so that tied embeddings are in memory once."""

    def __init__(self, head: Packed) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._head = [head]  # in a list: it is the head's, not a module of this one

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of ids [...]; IndexError: an id below 0 or beyond."""
        ids = tokens.reshape(-1)
        host_ids = ids.tolist()
        least, most = min(host_ids, default=0), max(host_ids, default=0)
        if least < 0 or most >= self.num_embeddings:
            raise IndexError(f"ids {least} to {most}: expected 0 to {self.num_embeddings - 1}")
        return self._head[0].rows(ids).reshape(*tokens.shape, self.embedding_dim)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Embedding:
        copied = deepcopy(self._head[0], memo)
        table = nn.Embedding(self.num_embeddings, self.embedding_dim, device="meta")
        table.weight = copied.weight  # tied again
        return table


class Slot(NamedTuple):
    """A linear layer of a model, and its parent module."""

    parent: nn.Module
    name: str
    layer: Any  # nn.Linear or Conv1D

    @property
    def weight(self) -> Tensor:
        """Return W [out, in], a view."""
        return weight_of(self.layer)


def weight_of(layer: nn.Module) -> Tensor:
    """Return W [out, in] of `nn.Linear` or `Conv1D`, a view."""
    weight: Any = layer.weight
    rows: Tensor = weight.t() if isinstance(layer, Conv1D) else weight
    return rows


def slots(model: nn.Module) -> Iterator[Slot]:
    """Yield every `nn.Linear` and `Conv1D` at a single place of `model`, over a plain tensor.

    Layers with hooks, and subclasses of layers and tensors, may compute otherwise and are left out.
    """
    children: list[tuple[nn.Module, str, Any]]
    children = [(p, name, child) for p in model.modules() for name, child in p.named_children()]
    places = Counter(id(child) for _, _, child in children)
    for parent, name, layer in children:
        if type(layer) not in (nn.Linear, Conv1D) or has_hooks(layer) or places[id(layer)] > 1:
            continue
        if type(layer.weight.data) is Tensor and layer.weight.layout == torch.strided:
            yield Slot(parent, name, layer)


def has_hooks(module: nn.Module) -> bool:
    """Return whether the module has hooks, which its replacement would not call."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def exchange_each(
    model: nn.Module, instead: Callable[[nn.Module], Callable[[nn.Module], StandIn] | None]
) -> None:
    """Put an `instead(m)(m)` at each place of unhooked m in `model`; `instead(m)` None: m stays."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not has_hooks(child) and (make := instead(child)) is not None:
                setattr(parent, name, make(child))


def exchange(slot: Slot, packed: Packed, tables: list[tuple[nn.Module, str]]) -> None:
    """Put `packed` in place of a layer, which loses its weight, and of any `tables` tied to it."""
    for parent, name in tables:
        table = getattr(parent, name)
        if type(table) is nn.Embedding and table.weight is slot.layer.weight:
            setattr(parent, name, PackedEmbedding(packed))
    setattr(slot.parent, slot.name, packed)
    slot.layer.weight = None  # a slot may outlive its layer, and must not keep its weight


def embeddings(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return parent and name of each stock embedding without `max_norm`, `sparse` or hooks."""
    return [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Embedding and child.max_norm is None
        if not (child.sparse or has_hooks(child))
    ]


def restore(model: nn.Module, kind: type[StandIn] = StandIn) -> None:
    """Put stock modules in the places of all of a `kind` below `model`, tied as they were."""
    memo: dict[int, Any] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, deepcopy(child, memo))


def stock_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return an `nn.Linear` over `weight` [out, in] and `bias`, not copies, without gradients."""
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
