"""Select a layout for each linear layer by rule, and pack the layers in place.

The rule is the order of `LAYOUTS`: the first that can hold a weight here, by its dtype, its width
and what the processor and the compiled kernels offer. Small layers gain as well, since a pass over
panels is run by C.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from spsbench.engines.linear_layers import Packed, Slot, embeddings, exchange, slots, tied
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import PanelLinear, TileLinear, most_bytes

LAYOUTS: dict[str, type[Packed]] = {
    "tiles": TileLinear,  # as fast as panels in small passes, faster in all others
    "panels": PanelLinear,
}


def layout_of(weight: Tensor) -> str | None:
    """Return the layout of `weight` [out, in] here; None: it stays stock."""
    return next((name for name, kind in LAYOUTS.items() if kind.refuses(weight) is None), None)


def unpackable(model: nn.Module) -> str | None:
    """Return why nothing of `model` can be packed, else None."""
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
    """Pack layer after layer, so that one at most is in memory twice; return shapes and layouts.

    Layers of `stock_shapes` keep their weights.
    """
    packed = []
    tables = embeddings(model)
    for slot in list(slots(model)):
        layout = layout_of(slot.weight)
        if layout is not None and shape_of(slot) not in stock_shapes:
            packed.append((shape_of(slot), layout))
            exchange(slot, LAYOUTS[layout](slot.weight, slot.layer.bias), tied(slot, tables))
    return packed


def packed_bytes(model: nn.Module) -> int:
    """Return the bytes that the panels of the stock linear layers of `model` take at most."""
    weights = [slot.weight for slot in slots(model)]
    return sum(most_bytes(weight) for weight in weights if layout_of(weight))


@torch.inference_mode()
def pack_network(module: nn.Module) -> None:
    """Pack the linear layers of a network that is no model.

    A shape whose packed product is not the stock one keeps its weights.
    """
    if unpackable(module):
        return
    differing = set()
    for shape, slot in {shape_of(slot): slot for slot in slots(module)}.items():
        weight = slot.weight
        if (layout := layout_of(weight)) is None:
            continue
        x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype)[None]
        made, stock = LAYOUTS[layout](weight, slot.layer.bias)(x).float(), slot.layer(x).float()
        if not torch.allclose(made, stock, rtol=0.02, atol=1e-3):
            differing.add(shape)
    with huge_pages(packed_bytes(module)):
        pack_linear_layers(module, differing)


def shape_of(slot: Slot) -> str:
    """Return outputs x inputs of a layer."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"
