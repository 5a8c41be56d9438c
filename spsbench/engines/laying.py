"""The layers of a model that are to be laid out, and how."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from spsbench.engines import packings
from spsbench.engines.origins import origin_of
from spsbench.engines.packing import panels
from spsbench.engines.packing.linear_layers import Slot, slots
from spsbench.engines.packing.memory import Room, huge_room
from spsbench.engines.packing.worth import pack_all, shape_of, to_pack, worthwhile
from spsbench.engines.packings import Packing
from spsbench.engines.quantization import coded_layouts
from spsbench.engines.quantization.coded_layouts import pack_codes
from spsbench.engines.quantization.layers import quantised_layers
from spsbench.engines.session.engine_config import Choice


@dataclass(frozen=True, slots=True)
class Laying:
    """What is fastest for a model here, or was chosen before."""

    model: nn.Module
    wanted: Mapping[str, str]  # shape -> layout, of stock layers and of those over codes
    packable: list[tuple[Slot, str]]  # of stock ones

    @classmethod
    def of(cls, model: PreTrainedModel, known: Choice | None, *, stock: bool = False) -> "Laying":
        """Choose, or take over what is `known`; `stock`: stock layers stay so."""
        before = known.packed if known else None
        layers = list(slots(model))
        wanted = {} if stock else worthwhile(layers, before)
        packable = to_pack(layers, wanted)
        return cls(
            model, wanted | coded_layouts.coded_layouts(model, model.dtype, before), packable
        )

    def lay(self, packing: Packing) -> dict[str, int]:
        """Lay them out, in place; how many of each shape."""
        made = pack_all(self.model, self.packable, packing.room)
        return made | pack_codes(self.model, self.wanted, packing.room)

    def packing(self, *, kept: bool) -> Packing:
        """Where panels will be, or what of them is kept on disk if that may be taken."""
        parts = list(self._parts())
        name = packings.name_of(parts)
        found = packings.recall(name) if kept else None
        origins = frozenset(origin for origin, _ in parts if origin is not None)
        return Packing(name, found or self._room(), origins)

    def _room(self) -> Room | None:
        """Huge pages for all panels, where the system has so much memory."""
        size = sum(panels.most_bytes(slot.weight) for slot, _ in self.packable)
        layers = quantised_layers(self.model)
        return huge_room(size + sum(coded_layouts.most_bytes(layer) for *_, layer in layers))

    def _parts(self) -> Iterator[tuple[str | None, str]]:
        """Origin and layout of each layer, in the order in which they are laid out."""
        for slot, layout in self.packable:
            how = f"{shape_of(slot)} {slot.weight.dtype} {layout}"
            yield origin_of(slot.layer.weight), how
        for *_, layer in quantised_layers(self.model):
            shape = coded_layouts.shape_of(layer)
            yield layer.origin, f"{shape} {self.wanted[shape]}"
