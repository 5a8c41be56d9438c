"""The models of a run: found, measured against memory, and loaded once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.machine.bandwidth import BYTES, read_bandwidth, weight_bytes
from spsbench.methods.resolve import resolve
from spsbench.models.folder import locate
from spsbench.models.shapes import locate_shape
from spsbench.models.shelf import Loaded, Shelf
from spsbench.models.surprises import surprises
from spsbench.settings.access import Access
from spsbench.settings.cell import Cell
from spsbench.settings.experiment import Experiment
from spsbench.settings.models import ModelSpec

Say = Callable[[str], None]


class Models:
    """The models of each cell; what is surprising about them is said once."""

    def __init__(self, shelf: Shelf, say: Say) -> None:
        self.shelf = shelf
        self._say = say
        self._told: set[str] = set()  # cells
        self._said: set[str] = set()  # lines

    def __call__(self, cell: Cell) -> Loaded:
        """Load them, or find them again."""
        loaded = self.shelf.load(cell)
        if cell.id not in self._told:
            self._told.add(cell.id)
            self._tell(cell, loaded)
        return loaded

    def _tell(self, cell: Cell, loaded: Loaded) -> None:
        for line in () if cell.models.random else surprises(loaded):
            if line not in self._said:
                self._say(f"note: {line}")
                self._said.add(line)


def resolved(experiment: Experiment) -> Experiment:
    """With every cell checked and its verifier chosen: only then is its id what records carry."""
    parts = []
    for part in experiment.parts:
        cells = {cell.id: cell for cell in map(resolve, part.cells)}
        parts.append(replace(part, cells=tuple(cells.values())))
    return replace(experiment, parts=tuple(parts))


def folders_of(experiment: Experiment, access: Access, say: Say) -> dict[ModelSpec, Path]:
    """The folder of every model of a run."""
    found: dict[ModelSpec, Path] = {}
    for model in dict.fromkeys(model for cell in experiment.cells for model in cell.models.all):
        if model.random:
            found[model] = locate_shape(model, offline=access.offline, say=say)
        else:
            found[model] = locate(
                model,
                offline=access.offline,
                trust_remote_code=model.trust_remote_code,
                allow_pickle=access.allow_pickle,
                say=say,
            )
    return found


def memory(
    experiment: Experiment, folders: dict[ModelSpec, Path], known: float | None = None
) -> dict[str, Any] | None:
    """What this machine reads from memory a second, and what one token of each target reads.

    The first is measured, unless it is `known` from an earlier start.
    """
    targets = [cell.models.target for cell in experiment.cells]
    sizes = {}
    for model in targets:
        if model.device != "cpu" or model.random:
            continue
        dtype = "float32" if model.dtype == "auto" else model.dtype
        if dtype in BYTES and any(folders[model].glob("*.safetensors")):
            sizes[model.id] = weight_bytes(folders[model], dtype)
    if not sizes:
        return None
    return {"bandwidth": known or read_bandwidth(experiment.threads), "weights": sizes}
