"""Select a layout for each shape of linear layers by rule, and pack the layers in place.

The rule is the order of `LAYOUTS`: the first that can hold a weight here, by its dtype, its width
and what the processor and the compiled kernels offer. Trials over shapes from 32x32 to 50257x1280
chose nothing else: small layers gain as well, since a layer in panels is replayed by C.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from spsbench.engines.linear_layers import Packed, Slot, embeddings, exchange, slots, tied
from spsbench.extensions.cpu.packing.memory import huge_pages
from spsbench.extensions.cpu.packing.panels import PanelLinear, TileLinear, most_bytes

LAYOUTS: dict[str, type[Packed]] = {
    "tiles": TileLinear,  # as fast as panels in small passes, faster in all others
    "panels": PanelLinear,
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
