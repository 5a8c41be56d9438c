"""Weights laid out once for small batches: oneDNN's blocked order instead of rows.

A product of 1 to 8 tokens with a stock weight either re-orders it on every call or runs a kernel
made for large batches: scoring five tokens then costs two to five times one token, and speculation
gains nothing. Packed once, five cost about as much as one (docs/engines.md has the figures).
"""

import ctypes
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from transformers.pytorch_utils import Conv1D

LAYOUTS = {torch.float32: (16, 64, 1), torch.bfloat16: (16, 64, 2)}
"""The blocks that oneDNN chooses on AVX-512, by dtype; on another machine they may not fit."""
onednn: Any = torch.ops.mkldnn

# A tracer cannot record the operator's list of scalars, but it can record a call of this.
_SCRIPT = """
def product(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
"""
product: Any = torch.jit.CompilationUnit(_SCRIPT).product


class PackedLinear(nn.Module):
    """`x W^T + b` over a packed W; a deep copy of it is the stock layer it was made from.

    A pass of fewer than `least` rows is filled up with zeros: oneDNN's kernels for one to three
    rows leave the processor waiting, and on some machines four rows take less time than one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, least: int = 1) -> None:
        """`weight` [out, in] in one of `LAYOUTS`, on the CPU."""
        super().__init__()
        self.least = least
        self.out_features, self.in_features = weight.shape
        packed = onednn._reorder_linear_weight(weight)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = bias if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = x.shape[-2]
        if rows < self.least:
            x = pad(x, (0, 0, 0, self.least - rows))
        made: Tensor = product(x, self.weight, self.bias)
        return made[..., :rows, :] if rows < self.least else made

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return stock_linear(self.weight.to_dense(), deepcopy(self.bias))


class PackedEmbedding(nn.Module):
    """Rows read out of a packed head, so that tied embeddings are in memory once.

    oneDNN keeps `[out, in]` as blocks `[out / b, in / (a c), a, b, c]`. `layout` is (a, b, c); it
    is found by `find_layout`, which compares every row.
    """

    def __init__(self, head: PackedLinear, layout: tuple[int, int, int]) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._head = [head]  # in a list: it is the head's, not a module of this one
        self._blocks = blocks_of(head, layout)
        self._width = layout[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., width]."""
        flat = tokens.reshape(-1)
        rows = self._blocks[flat // self._width, :, :, flat % self._width]  # [m, in/ac, a, c]
        return rows.flatten(1)[:, : self.embedding_dim].reshape(*tokens.shape, -1)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Embedding:
        copied = deepcopy(self._head[0], memo)
        return nn.Embedding(self.num_embeddings, self.embedding_dim, _weight=copied.weight)


class Slot(NamedTuple):
    """A linear layer of a model, and where it hangs."""

    parent: nn.Module
    name: str
    layer: Any  # nn.Linear or Conv1D

    @property
    def weight(self) -> Tensor:
        """[out, in], a view."""
        weight: Tensor = self.layer.weight
        return weight.t() if isinstance(self.layer, Conv1D) else weight

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        rows, columns = self.weight.shape
        return rows, columns


def slots(model: nn.Module) -> Iterator[Slot]:
    """Every stock linear layer; subclasses may compute something else and are left out."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if type(layer) in (nn.Linear, Conv1D) and not layer._forward_hooks:
                yield Slot(parent, name, layer)


def unpackable(model: nn.Module) -> str | None:
    """Why nothing of `model` can be packed, else None."""
    kinds = {slot.weight.dtype for slot in slots(model)}
    places = {slot.weight.device.type for slot in slots(model)}
    if not kinds:
        return "it has no linear layers of the stock kind"
    if places != {"cpu"}:
        return f"its weights are on {', '.join(sorted(places))}"
    if not kinds <= LAYOUTS.keys():
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return f"oneDNN packs float32 and bfloat16, not {names}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without oneDNN"
    return None


def pack(slot: Slot, least: int, embeddings: list[tuple[nn.Module, str]]) -> None:
    """Replace a stock layer, and release its weight; `embeddings` are those tied to it."""
    packed = PackedLinear(slot.weight, slot.layer.bias, least)
    if embeddings:
        layout = find_layout(packed, slot.weight)
        if layout is not None:
            for parent, name in embeddings:
                setattr(parent, name, PackedEmbedding(packed, layout))
    setattr(slot.parent, slot.name, packed)
    slot.layer.weight = None  # a slot may outlive its layer, and must not keep its weight


def tied(model: nn.Module, slot: Slot) -> list[tuple[nn.Module, str]]:
    """The embeddings that share their matrix with a layer, and can be read out of its packing."""
    found = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Embedding and child.weight is slot.layer.weight:
                plain = child.max_norm is None and not child.sparse and not child._forward_hooks
                found += [(parent, name)] if plain else []
    return found


def find_layout(head: PackedLinear, weight: Tensor) -> tuple[int, int, int] | None:
    """The blocks (a, b, c) by which every row of `weight` is read back exactly; None: none do."""
    layout = LAYOUTS[weight.dtype]
    return layout if _reads_back(head, weight, layout) else None


def _reads_back(head: PackedLinear, weight: Tensor, layout: tuple[int, int, int]) -> bool:
    try:
        embedding = PackedEmbedding(head, layout)
    except RuntimeError:  # the blocks do not fill the buffer
        return False
    ends = torch.tensor([0, 1, len(weight) - 1])
    if not torch.equal(embedding(ends), weight[ends]):
        return False
    every = torch.arange(len(weight)).chunk(1 + len(weight) // 4096)
    return all(torch.equal(embedding(rows), weight[rows]) for rows in every)


def blocks_of(head: PackedLinear, layout: tuple[int, int, int]) -> Tensor:
    """[out / b, in / (a c), a, b, c] view of a packed weight's memory.

    Raises:
        RuntimeError: its size does not fit these blocks.
    """
    a, b, c = layout
    size = onednn._nbytes(head.weight)
    memory = (ctypes.c_uint8 * size).from_address(onednn.data_ptr(head.weight))
    raw = torch.frombuffer(memory, dtype=head.weight.dtype)
    deep = -(-head.in_features // (a * c))
    return raw.view(-(-head.out_features // b), deep, a, b, c)


def unpack(model: nn.Module) -> None:
    """Give `model` stock layers again."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear | PackedEmbedding):
                setattr(parent, name, deepcopy(child))


def stock_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A layer of torch's own over `weight` [out, in]."""
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = bias  # type: ignore[assignment]
    return layer


def stock_product(slot: Slot, x: Tensor) -> Tensor:
    """What the layer computes, for timing beside its packed form."""
    return linear(x, slot.weight, slot.layer.bias)
