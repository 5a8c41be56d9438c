"""Which layout the codes of a model are given, measured once on a machine, and giving it.

A layout is one file and one line here, as in packing.py for weights that are no codes.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn

from spsbench.engines.packing.memory import ALIGNED, Room, within
from spsbench.engines.packing.panels import PANEL
from spsbench.engines.packing.trials import CACHES, MARGIN, PART, of_one_thread
from spsbench.engines.packing.tuning_cache import keep, recall
from spsbench.engines.quantization.coded_tiles import QuantisedTiles
from spsbench.engines.quantization.codes import Codes
from spsbench.engines.quantization.layers import quantised_layers
from spsbench.engines.quantization.over_codes import OverCodes, QuantisedLinear
from spsbench.engines.quantization.panels import QuantisedPanels, shape_of_panels

LAYOUTS: dict[str, type[QuantisedPanels]] = {
    "tiles": QuantisedTiles,  # before panels: as fast in small passes, it is faster in all others
    "panels": QuantisedPanels,
}


def refused(model: nn.Module, dtype: torch.dtype) -> str | None:
    """Why the layers over codes of `model` cannot be laid out so; None: they can."""
    layers = [layer for *_, layer in quantised_layers(model)]
    if any(tensor.device.type != "cpu" for layer in layers for tensor in layer.parameters()):
        return "codes are multiplied on the CPU"
    return QuantisedPanels.refuses(dtype)


def coded_layouts(
    model: nn.Module, dtype: torch.dtype, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The layout of each shape and width of codes; it is timed once on a machine.

    Args:
        model: with layers over codes, not laid out.
        dtype: of their inputs.
        known: what was chosen before; a layout that cannot be had here is chosen anew.
    """
    chosen: dict[str, str] = {}
    for *_, layer in quantised_layers(model):
        if (shape := shape_of(layer)) not in chosen:
            before = (known or {}).get(shape)
            chosen[shape] = before if before in layouts(dtype) else _layout(layer, dtype)
    return chosen


def layouts(dtype: torch.dtype) -> dict[str, type[QuantisedPanels]]:
    """Those for inputs of `dtype` here."""
    return {name: kind for name, kind in LAYOUTS.items() if kind.refuses(dtype) is None}


def _layout(layer: OverCodes, dtype: torch.dtype) -> str:
    """The layout of layers like this one: kept, or measured and kept."""
    ways = layouts(dtype)
    if len(ways) == 1:
        return next(iter(ways))
    kind = " with minima" if layer.least else ""
    key = f"replayed layout {shape_of(layer)} in groups of {layer.group}{kind} {dtype}"
    found = str(recall(key))
    if found not in ways:
        keep(key, found := fastest_layout(layer, dtype))
    return found


def fastest_layout(layer: OverCodes, dtype: torch.dtype) -> str:
    """The first of `LAYOUTS` that no other is faster than by `MARGIN`; by processor time."""
    some = part(layer)
    made = {name: kind(some) for name, kind in layouts(dtype).items()}
    taken = of_one_thread([[each] for each in made.values()], layer.in_features, dtype, CACHES)
    least = min(taken)
    return next(name for name, took in zip(made, taken, strict=True) if took <= least * MARGIN)


def part(layer: OverCodes) -> QuantisedLinear:
    """As many outputs as show the speed of all."""
    count = max(2 * PANEL, PART * 8 // (layer.in_features * layer.bits))
    numbers, scales, group, bits, least = layer.codes
    some = least if least is None else least[:count]
    return QuantisedLinear(Codes(numbers[:count], scales[:count], group, bits, some), None)


def pack_codes(model: nn.Module, wanted: Mapping[str, str], room: Room | None) -> dict[str, int]:
    """Lay out every layer over codes, in place; how many of each shape and width of codes.

    Args:
        model: with layers over codes, not laid out.
        wanted: shape -> layout.
        room: where panels are, or will be.
    """
    counts: Counter[str] = Counter()
    found = quantised_layers(model)[::-1]
    with within(room):
        while found:  # what a layer was is released as soon as it is laid out
            parent, name, layer = found.pop()
            counts[shape_of(layer)] += 1
            setattr(parent, name, LAYOUTS[wanted[shape_of(layer)]](layer))
    return dict(counts)


def shape_of(layer: OverCodes) -> str:
    """Outputs x inputs, and bits."""
    return f"{layer.out_features}x{layer.in_features} int{layer.bits}"


def most_bytes(layer: OverCodes) -> int:
    """Of its panels, with what may lie between them and the next."""
    count, groups, size = shape_of_panels(layer)
    return count * groups * size + ALIGNED
