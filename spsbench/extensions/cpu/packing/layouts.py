"""Select a layout for each shape of linear layers by rule, and pack the layers in place.

The rule is the order of `LAYOUTS`: the first that can hold a weight here, by its dtype, its width
and what the processor and the compiled kernels offer. Trials over shapes from 32x32 to 50257x1280
chose nothing else: small layers gain as well, since a layer in panels is replayed by C.
"""

import ctypes
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.engines.linear_layers import Packed, Slot, embeddings, exchange, slots, tied
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import PanelLinear, TileLinear, most_bytes

# Weights in oneDNN's blocked order, for its own products; they need nothing but torch. A product of
# 1 to 8 tokens with a stock weight either re-orders it on every call or runs a kernel that is made
# for large batches: scoring five tokens then costs two to five times one token.

BLOCKS = {torch.float32: (16, 64, 1), torch.bfloat16: (16, 64, 2)}
"""(a, b, c) of `[out / b, in / (a c), a, b, c]`, which oneDNN chooses on AVX-512; another machine
may have others."""
onednn: Any = torch.ops.mkldnn


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x W^T + b` over a blocked W."""
    result: Tensor = onednn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


@cache
def _refuses(dtype: torch.dtype) -> str | None:
    """Return why oneDNN multiplies no blocked weights of `dtype` on this processor, else None.

    A small product is tried: which instructions oneDNN needs for bfloat16 is its own affair, and
    `ONEDNN_MAX_CPU_ISA` may keep it from those that the processor has.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without oneDNN"
    try:
        weight = onednn._reorder_linear_weight(torch.zeros(64, 64, dtype=dtype))
        product(torch.zeros(1, 5, 64, dtype=dtype), weight, None)
    except RuntimeError as error:
        return f"oneDNN blocks no {dtype} on this processor ({str(error).splitlines()[0]})"
    return None


class OneDnnLinear(Packed):
    """`x W^T + b` over a blocked W."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Lay out `weight` [out, in], which `refuses` accepts."""
        super().__init__(weight, bias)
        packed = onednn._reorder_linear_weight(weight)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        return product(x, self.weight, self.bias)

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Refuse other numbers than float32 and bfloat16, and those oneDNN refuses here."""
        if weight.dtype not in BLOCKS:
            return f"oneDNN blocks float32 and bfloat16, not {weight.dtype}"
        return _refuses(weight.dtype)

    def dense(self) -> Tensor:
        """Return W [out, in]."""
        return self.weight.to_dense()

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows [n] of W, [n, in]."""
        a, b, c = BLOCKS[self.weight.dtype]
        blocks = self._memory().view(-(-self.out_features // b), -1, a, b, c)
        return blocks[ids // b, :, :, ids % b].flatten(1)[:, : self.in_features]

    def is_readable(self, weight: Tensor) -> bool:
        """Compare every row: oneDNN does not document its blocks."""
        ends = torch.tensor([0, 1, len(weight) - 1])
        try:
            if not torch.equal(self.rows(ends), weight[ends]):
                return False
        except (RuntimeError, IndexError):  # the blocks do not fill the buffer
            return False
        every = torch.arange(len(weight)).chunk(1 + len(weight) // 4096)
        return all(torch.equal(self.rows(ids), weight[ids]) for ids in every)

    def _memory(self) -> Tensor:
        """Return all numbers of the blocked weight in memory order, a view."""
        size = onednn._nbytes(self.weight)
        memory = (ctypes.c_uint8 * size).from_address(onednn.data_ptr(self.weight))
        return torch.frombuffer(memory, dtype=self.weight.dtype)


LAYOUTS: dict[str, type[Packed]] = {
    "tiles": TileLinear,  # as fast as panels in small passes, faster in all others
    "panels": PanelLinear,
    "onednn": OneDnnLinear,  # without kernels
}


def layouts(weight: Tensor) -> dict[str, type[Packed]]:
    """Return the layouts that can hold `weight` [out, in] here, the best first."""
    return {name: kind for name, kind in LAYOUTS.items() if kind.refuses(weight) is None}


def in_panels(names: Iterable[str]) -> bool:
    """Return whether one of the layouts has a kernel that prefetches its weights."""
    return any(issubclass(LAYOUTS[name], PanelLinear) for name in names if name in LAYOUTS)


def unpackable(model: nn.Module) -> str | None:
    """Return why nothing of `model` can be packed, else None."""
    weights = [slot.weight for slot in slots(model)]
    if not weights:
        return "it has no linear layers of the stock kind"
    places = {weight.device.type for weight in weights}
    if places != {"cpu"}:
        return f"its weights are on {', '.join(sorted(places))}"
    if any(layouts(weight) for weight in weights):
        return None
    return "; ".join(dict.fromkeys(str(kind.refuses(weights[0])) for kind in LAYOUTS.values()))


def select_layouts(
    layers: Iterable[Slot], previous: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a layout for each shape of `layers` that is to be packed.

    Args:
        layers: of a model.
        previous: what an earlier run of this experiment selected. A shape that is not in it stays
            stock; a layout that cannot be had here is selected anew. None: there was no such run.
    """
    chosen: dict[str, str] = {}
    for slot in layers:
        shape = shape_of(slot)
        if shape in chosen or (previous is not None and shape not in previous):
            continue
        usable = list(layouts(slot.weight))
        if previous is not None and previous[shape] in usable:
            chosen[shape] = previous[shape]
        elif usable:
            chosen[shape] = usable[0]
    return chosen


def pack_linear_layers(model: nn.Module, chosen: Mapping[str, str]) -> dict[str, int]:
    """Pack layer after layer, so that one at most is in memory twice; count them by shape."""
    counts: Counter[str] = Counter()
    tables = embeddings(model)
    for slot in list(slots(model)):
        layout = chosen.get(shape_of(slot))
        if layout in layouts(slot.weight):
            counts[shape_of(slot)] += 1
            exchange(slot, LAYOUTS[layout](slot.weight, slot.layer.bias), tied(slot, tables))
    return dict(counts)


def packed_bytes(model: nn.Module) -> int:
    """Return the bytes that the panels of the stock linear layers of `model` take at most."""
    return sum(most_bytes(slot.weight) for slot in slots(model))


@torch.inference_mode()
def pack_network(module: nn.Module) -> dict[str, int]:
    """Pack the linear layers of a network that is no model; count them by shape.

    A shape whose packed product is not the stock one keeps its weights.
    """
    if unpackable(module):
        return {}
    chosen = select_layouts(slots(module))
    for slot in {shape_of(slot): slot for slot in slots(module)}.values():
        if (name := chosen.get(shape_of(slot))) is None:
            continue
        weight = slot.weight
        x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype)[None]
        packed = layouts(weight)[name](weight, slot.layer.bias)
        stock = slot.layer(x).float()
        if not torch.allclose(packed(x).float(), stock, rtol=0.02, atol=1e-3):
            del chosen[shape_of(slot)]
    with huge_pages(packed_bytes(module)):
        return pack_linear_layers(module, chosen)


def shape_of(slot: Slot) -> str:
    """Return outputs x inputs of a layer."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"
