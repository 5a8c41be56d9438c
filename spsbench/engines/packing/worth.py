"""Which layers are worth laying out anew, and how: shape by shape, measured once on a machine."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from spsbench.engines.packing.layouts import LAYOUTS, layouts, unpackable
from spsbench.engines.packing.linear_layers import Slot, embeddings, exchange, slots, tied
from spsbench.engines.packing.memory import Room, huge_room, within
from spsbench.engines.packing.panels import most_bytes
from spsbench.engines.packing.trials import CACHES, best_layout
from spsbench.engines.packing.tuning_cache import keep, recall
from spsbench.messages import announce_if_slow

STOCK = "stock"
_BEST: dict[str, str | None] = {}
"""By shape, kind and dtype of layers, and whether the caches hold the model; a draft often has its
target's."""


def worthwhile(layers: Iterable[Slot], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The shapes that are faster packed, and how; each is timed once on a machine.

    Args:
        layers: of a model.
        known: what was chosen before; what it leaves out stays stock. A layout that cannot be had
            here is chosen anew. None: nothing was.
    """
    by_shape: dict[str, list[Slot]] = {}
    for slot in layers:
        by_shape.setdefault(shape_of(slot), []).append(slot)
    size = sum(slot.weight.nbytes for alike in by_shape.values() for slot in alike)
    best: dict[str, str | None] = {}
    for shape, alike in by_shape.items():
        if known is not None and (shape not in known or known[shape] in layouts(alike[0].weight)):
            best[shape] = known.get(shape)
            continue
        kind, dtype = type(alike[0].layer).__name__, alike[0].weight.dtype
        key = f"replayed layout {shape} {kind} {dtype} {'in' if size < CACHES else 'beyond'} caches"
        if key not in _BEST:
            _BEST[key] = _best(key, alike, size)
        best[shape] = _BEST[key]
    return {shape: layout for shape, layout in best.items() if layout is not None}


def _best(key: str, alike: Sequence[Slot], size: int) -> str | None:
    """The layout of layers of one shape: kept as `key`, or measured and kept. None: stock."""
    found = str(recall(key))
    if found == STOCK or found in layouts(alike[0].weight):
        return None if found == STOCK else found
    with announce_if_slow(f"timing layouts of {shape_of(alike[0])} layers, once on this machine"):
        best = best_layout(alike, size)
    keep(key, best or STOCK)
    return best


def pack_all(
    model: nn.Module, packable: Sequence[tuple[Slot, str]], room: Room | None
) -> dict[str, int]:
    """Pack layer after layer: no more than one is in memory twice. How many of each shape.

    Args:
        model: where the layers hang.
        packable: as `to_pack` finds them.
        room: where panels are, or will be.
    """
    counts: Counter[str] = Counter()
    tables = embeddings(model)
    with within(room):
        for slot, layout in packable:
            counts[shape_of(slot)] += 1
            exchange(slot, LAYOUTS[layout](slot.weight, slot.layer.bias), tied(slot, tables))
    return dict(counts)


def to_pack(layers: Iterable[Slot], wanted: Mapping[str, str]) -> list[tuple[Slot, str]]:
    """The layers that are to be packed, where that is possible here, and how."""
    found = [(slot, wanted[shape_of(slot)]) for slot in layers if shape_of(slot) in wanted]
    return [(slot, layout) for slot, layout in found if layout in layouts(slot.weight)]


@torch.inference_mode()
def pack_linears(module: nn.Module) -> dict[str, int]:
    """Pack what is faster packed of a network that is no model; how many of each shape.

    A layer whose packed product is not the stock one keeps its weights, and so do all of its shape.
    """
    layers = list(slots(module))
    if unpackable(module):
        return {}
    wanted = worthwhile(layers)
    for slot in {shape_of(slot): slot for slot in layers}.values():
        if (name := wanted.get(shape_of(slot))) is None:
            continue
        weight = slot.weight
        x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype)[None]
        packed = layouts(weight)[name](weight, slot.layer.bias)
        stock = slot.layer(x).float()
        if not torch.allclose(packed(x).float(), stock, rtol=0.02, atol=1e-3):
            del wanted[shape_of(slot)]
    packable = to_pack(layers, wanted)
    room = huge_room(sum(most_bytes(slot.weight) for slot, _ in packable))
    return pack_all(module, packable, room)


def shape_of(slot: Slot) -> str:
    """Rows x columns, that is outputs x inputs."""
    rows, columns = slot.weight.shape
    return f"{rows}x{columns}"
