"""The models of a benchmark: found, hashed, measured against memory, and loaded once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.bandwidth import BYTES, read_bandwidth, weight_bytes
from spsbench.build import resolve
from spsbench.cli.notes import note, say
from spsbench.cli.session import surprises
from spsbench.experiment import Experiment
from spsbench.loading import Choices, Loaded, Shelf
from spsbench.models.folder import locate
from spsbench.models.shapes import locate_shape
from spsbench.results import Cell, ModelRef


class Models:
    """The models of each cell; what is surprising about them is said once."""

    def __init__(self, offline: bool, threads: int | None = None) -> None:
        self.choices: Choices = {}  # of engines
        self._shelf = Shelf(offline=offline, threads=threads, choices=self.choices, say=say)
        self._told: set[str] = set()  # cells
        self._said: set[str] = set()  # lines

    def __call__(self, cell: Cell) -> Loaded:
        """Load them, or find them again."""
        loaded = self._shelf.load(cell)
        if cell.id not in self._told:
            self._told.add(cell.id)
            self._tell(cell, loaded)
        return loaded

    def _tell(self, cell: Cell, loaded: Loaded) -> None:
        for line in () if cell.random_weights else surprises(loaded):
            if line not in self._said:
                note(line)
                self._said.add(line)


def resolved(experiment: Experiment) -> Experiment:
    """With every cell checked and its verifier chosen: only then is its id what records carry."""
    parts = []
    for part in experiment.parts:
        cells = {cell.id: cell for cell in map(resolve, part.cells)}
        parts.append(replace(part, cells=tuple(cells.values())))
    return replace(experiment, parts=tuple(parts))


def folders_of(experiment: Experiment, offline: bool) -> dict[ModelRef, Path]:
    """The folder of every model of a run."""
    found: dict[ModelRef, Path] = {}
    for cell in experiment.cells:
        for ref in (cell.target, cell.draft):
            if ref is None or ref in found:
                continue
            if cell.random_weights:
                found[ref] = locate_shape(ref, offline=offline, say=say)
            else:
                found[ref] = locate(
                    ref, offline=offline, trust_remote_code=False, allow_pickle=False, say=say
                )
    return found


def memory(experiment: Experiment, folders: dict[ModelRef, Path]) -> dict[str, Any] | None:
    """What this machine reads from memory a second, and what one token of each target reads."""
    cells = [c for c in experiment.cells if c.device == "cpu" and not c.random_weights]
    sizes = {}
    for cell in cells:
        dtype = "float32" if cell.dtype == "auto" else cell.dtype
        if dtype in BYTES and any(folders[cell.target].glob("*.safetensors")):
            sizes[cell.target.id] = weight_bytes(folders[cell.target], dtype)
    if not sizes:
        return None
    return {"bandwidth": read_bandwidth(experiment.threads), "weights": sizes}
