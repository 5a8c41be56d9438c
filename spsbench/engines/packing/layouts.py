"""The layouts that weights can be given once, so that small batches are read at full speed.

A layout is one file and one line here. Which is used is measured (`trials.py`), shape by shape.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from spsbench.engines.packing.linear_layers import Packed, slots
from spsbench.engines.packing.onednn import FilledOneDnnLinear, OneDnnLinear
from spsbench.engines.packing.panels import PanelLinear
from spsbench.engines.packing.tiles import TileLinear

LAYOUTS: dict[str, type[Packed]] = {
    "tiles": TileLinear,  # before panels: as fast in small passes, it is faster in all others
    "panels": PanelLinear,
    "onednn": OneDnnLinear,
    "onednn-4": FilledOneDnnLinear,
}


def layouts(weight: Tensor) -> dict[str, type[Packed]]:
    """Those that can hold `weight` [out, in] here."""
    return {name: kind for name, kind in LAYOUTS.items() if kind.refuses(weight) is None}


def in_panels(names: Iterable[str]) -> bool:
    """Whether a layout is among them whose kernel asks for weights as reading.py tells."""
    return any(issubclass(LAYOUTS[name], PanelLinear) for name in names)


def unpackable(model: nn.Module) -> str | None:
    """Why nothing of `model` can be packed, else None."""
    weights = [slot.weight for slot in slots(model)]
    if not weights:
        return "it has no linear layers of the stock kind"
    places = {weight.device.type for weight in weights}
    if places != {"cpu"}:
        return f"its weights are on {', '.join(sorted(places))}"
    if any(layouts(weight) for weight in weights):
        return None
    return "; ".join(dict.fromkeys(str(kind.refuses(weights[0])) for kind in LAYOUTS.values()))
