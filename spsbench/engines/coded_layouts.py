"""Which layout the codes of a model are given, measured once on a machine, and giving it.

A layout is one file and one line here, as in packing.py for weights that are no codes.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn

from spsbench.engines.coded_tiles import QuantisedTiles
from spsbench.engines.codes import Codes
from spsbench.engines.kept import keep, recall
from spsbench.engines.pages import ALIGNED, huge_pages
from spsbench.engines.panels import PANEL
from spsbench.engines.quantised import QuantisedLinear, quantised_layers
from spsbench.engines.quantised_panels import QuantisedPanels, filled, size_of
from spsbench.engines.trials import CACHES, MARGIN, PART, of_one_thread

LAYOUTS: dict[str, type[QuantisedPanels]] = {
    "tiles": QuantisedTiles,  # before panels: as fast in small passes, it is faster in all others
    "panels": QuantisedPanels,
}


def refused(model: nn.Module, dtype: torch.dtype) -> str | None:
    """Why the layers over codes of `model` cannot be laid out so; None: they can."""
    layers = [layer for *_, layer in quantised_layers(model)]
    if any(layer.numbers.device.type != "cpu" for layer in layers):
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


def _layout(layer: QuantisedLinear, dtype: torch.dtype) -> str:
    """The layout of layers like this one: kept, or measured and kept."""
    ways = layouts(dtype)
    if len(ways) == 1:
        return next(iter(ways))
    kind = "" if layer.minima is None else " with minima"
    key = f"layout {shape_of(layer)} in groups of {layer.group}{kind} {dtype}"
    found = recall(key)
    if found not in ways:
        keep(key, found := fastest_layout(layer, dtype))
    return str(found)


def fastest_layout(layer: QuantisedLinear, dtype: torch.dtype) -> str:
    """The first of `LAYOUTS` that no other is faster than by `MARGIN`; by processor time."""
    some = part(layer)
    made = {name: kind(some) for name, kind in layouts(dtype).items()}
    taken = of_one_thread([[each] for each in made.values()], layer.in_features, dtype, CACHES)
    least = min(taken)
    return next(name for name, took in zip(made, taken, strict=True) if took <= least * MARGIN)


def part(layer: QuantisedLinear) -> QuantisedLinear:
    """As many outputs as show the speed of all."""
    count = max(2 * PANEL, PART * 8 // (layer.in_features * layer.bits))
    numbers, scales, group, bits, least = layer.codes
    some = least if least is None else least[:count]
    return QuantisedLinear(Codes(numbers[:count], scales[:count], group, bits, some), None)


def pack_codes(model: nn.Module, wanted: Mapping[str, str]) -> dict[str, int]:
    """Lay out every layer over codes, in place; how many of each shape and width of codes."""
    found = quantised_layers(model)
    counts: Counter[str] = Counter()
    with huge_pages(sum(_bytes(layer) for *_, layer in found)):
        for parent, name, layer in found:
            counts[shape_of(layer)] += 1
            setattr(parent, name, LAYOUTS[wanted[shape_of(layer)]](layer))
    return dict(counts)


def shape_of(layer: QuantisedLinear) -> str:
    """Outputs x inputs, and bits."""
    return f"{layer.out_features}x{layer.in_features} int{layer.bits}"


def _bytes(layer: QuantisedLinear) -> int:
    """Of its panels, with what may lie between them and the next."""
    room, group = filled(layer.in_features, layer.group)
    panel = size_of(room, group, layer.bits, layer.minima is not None)
    return -(-layer.out_features // PANEL) * panel + ALIGNED
