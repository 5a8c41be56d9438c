"""Weights in panels, for `panels.c` and `tiles.c`: read once, in order, at the memory's speed.

The layout of a linear layer is the first of `LAYOUTS` that can hold its weight here, by its dtype,
its width and what the processor and the compiled kernels offer. Small layers gain as well, since a
pass over panels is run by C.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from spsbench.engines.linear_layers import Packed, Slot, embeddings, exchange, slots
from spsbench.engines.replay import MAX_ROWS
from spsbench.extensions.cpu.kernels.native import kernel, missing
from spsbench.extensions.cpu.kernels.steps import HALVES, PANEL, BoundOperator
from spsbench.extensions.cpu.packing.memory import ALIGNED, empty, huge_pages
from spsbench.extensions.cpu.packing.tuning import prefetch_arguments, prefetch_of

PIECE = 512  # rows that are looked at in turn
DEPTH = {torch.float32: 1, torch.bfloat16: 2}  # inputs of one output side by side


class PanelLinear(Packed):
    """`x W^T + b` over W in panels `[out / 32, in / c, 32, c]`, the last one filled up with zeros.

    Every output adds up its inputs in one order: a token's result does not depend on how many are
    in the pass, nor on the number of threads. A W in float32 whose numbers are all bfloat16's, as
    in most checkpoints, is kept in halves: half of the bytes, and the same results.
    """

    operator = "product"  # by panels.c

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Lay out `weight` [out, in], which `refuses` accepts."""
        super().__init__(weight, bias)
        halves = halvable(weight)
        panels = blocks_of_panels((weight.bfloat16() if halves else weight)[None])[0]
        if halves:
            panels = panels.view(HALVES)
            # A model's dtype is that of the first parameter that is floating-point: there is one.
            self.wide = nn.Parameter(weight.new_empty(0, 0), requires_grad=False)
        self.weight = nn.Parameter(panels, requires_grad=False)
        how = self.out_features, *prefetch_arguments(prefetch_of(weight.dtype))
        self._product = BoundOperator(self.operator, self.weight, self.bias, *how)
        self._rows = BoundOperator("rows", self.weight)

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Return why not: no kernel for the dtype or here, odd inputs of bfloat16; None: it can."""
        if weight.dtype in DEPTH and weight.shape[1] % DEPTH[weight.dtype]:
            return f"{weight.shape[1]} inputs of {weight.dtype} do not fill a panel"
        return missing(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        return self._product(x.contiguous())  # type: ignore[no-any-return]

    def dense(self) -> Tensor:
        """Return W [out, in]."""
        rows = self.weight.detach().transpose(1, 2).reshape(-1, self.in_features)
        return widen_halves(rows[: self.out_features].clone())

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows [n] of W, [n, in]."""
        if ids.dtype == torch.int64 and len(ids) <= MAX_ROWS:  # which are read faster one by one
            return self._rows(ids.contiguous())  # type: ignore[no-any-return]
        return widen_halves(self.weight[ids // PANEL, :, ids % PANEL].flatten(1))


def halvable(weight: Tensor) -> bool:
    """Return whether `weight` [out, in] is float32, `in` even, and bfloat16 holds its numbers."""
    if weight.dtype != torch.float32 or weight.shape[1] % DEPTH[torch.bfloat16]:
        return False
    # A bfloat16 is a float's upper half. Most others are seen in the first rows.
    return not any((rows.view(torch.int32) & 0xFFFF).any() for rows in torch.split(weight, PIECE))


def widen_halves(numbers: Tensor) -> Tensor:
    """Return halves as float32, other numbers as they are."""
    return numbers.view(torch.bfloat16).float() if numbers.dtype == HALVES else numbers


def most_bytes(weight: Tensor) -> int:
    """Return the bytes of the panels of `weight` [out, in], alignment included."""
    return (len(weight) + PANEL) * weight.shape[1] * weight.itemsize + ALIGNED


def blocks_of_panels(weights: Tensor) -> Tensor:
    """Copy weights [E, out, in] of any strides into panels [E, ceil(out / 32), in / c, 32, c].

    `c` is `DEPTH` of the dtype; `PanelLinear.refuses` no weight. Missing outputs are zeros.
    """
    count, out, width = weights.shape
    depth, pack = DEPTH[weights.dtype], kernel("pack", weights.dtype)
    blocks = empty((count, -(-out // PANEL), width // depth, PANEL, depth), weights.dtype)
    for weight, panels in zip(weights, blocks, strict=True):
        size = out, width, *weight.stride(), torch.get_num_threads()
        pack(weight.data_ptr(), panels.data_ptr(), *size)
    return blocks


DEEP = 32  # inputs of a tile, as in tiles.c


class TileLinear(PanelLinear):
    """`x W^T + b` over W in the same panels; the order of each sum is another.

    As there it does not depend on how many rows are in the pass, nor on the number of threads.
    """

    operator = "tiles"  # by tiles.c

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Return why not: as panels, not bfloat16, inputs fill no tile, no matrix unit; or None."""
        if why := super().refuses(weight):
            return why
        if weight.dtype == torch.bfloat16 and weight.shape[1] % DEEP:
            return f"{weight.shape[1]} inputs do not fill tiles of {DEEP}"
        if weight.dtype != torch.bfloat16:
            return f"matrix units are used for bfloat16, not {weight.dtype}"
        return None if has_unit() else "no matrix unit (AMX) for bfloat16 here"


def has_unit() -> bool:
    """Return whether this process may use a matrix unit; there are kernels."""
    return bool(kernel("tiled", torch.bfloat16)())


LAYOUTS: dict[str, type[Packed]] = {
    "tiles": TileLinear,  # as fast as panels in small passes, faster in all others
    "panels": PanelLinear,
}


def layout_of(weight: Tensor) -> str | None:
    """Return the layout of `weight` [out, in] here; None: it stays stock."""
    return next((name for name, kind in LAYOUTS.items() if kind.refuses(weight) is None), None)


def unpackable(model: nn.Module) -> str | None:
    """Return why nothing of `model` can be packed: no layers, no CPU, no layout; None: some can."""
    weights = [slot.weight for slot in slots(model)]
    if not weights:
        return "it has no linear layers of the stock kind"
    places = {weight.device.type for weight in weights}
    if places != {"cpu"}:
        return f"its weights are on {', '.join(sorted(places))}"
    if any(map(layout_of, weights)):
        return None
    return "; ".join(dict.fromkeys(str(kind.refuses(weights[0])) for kind in LAYOUTS.values()))


def pack_linear_layers(
    model: nn.Module, stock_shapes: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Replace linear layers of `model` by packed ones; return ("OUTxIN", layout) of each.

    One after another is packed, with tables tied to it: one at most is in memory twice. Layers of
    `stock_shapes`, or that no layout takes, stay.
    """
    packed = []
    tables = embeddings(model)
    for slot in list(slots(model)):
        layout = layout_of(slot.weight)
        if layout is not None and shape_of(slot) not in stock_shapes:
            packed.append((shape_of(slot), layout))
            exchange(slot, LAYOUTS[layout](slot.weight, slot.layer.bias), tables)
    return packed


def packed_bytes(model: nn.Module) -> int:
    """Return the bytes that the panels of the stock linear layers of `model` take at most."""
    weights = [slot.weight for slot in slots(model)]
    return sum(most_bytes(weight) for weight in weights if layout_of(weight))


@torch.inference_mode()
def pack_network(module: nn.Module) -> None:
    """Pack the linear layers of a network that is no model, in place, where that is possible.

    A shape stays stock if the packed product of one layer is not near the stock one.
    """
    if unpackable(module):
        return
    differing = set()
    for shape, slot in {shape_of(slot): slot for slot in slots(module)}.items():
        weight = slot.weight
        if (layout := layout_of(weight)) is None:
            continue
        x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype)[None]
        packed, plain = LAYOUTS[layout](weight, slot.layer.bias)(x).float(), slot.layer(x).float()
        if not torch.allclose(packed, plain, rtol=0.02, atol=1e-3):
            differing.add(shape)
    with huge_pages(packed_bytes(module)):
        pack_linear_layers(module, differing)


def shape_of(slot: Slot) -> str:
    """Return outputs x inputs of a layer."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"
