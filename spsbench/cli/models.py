"""The models of a benchmark: found, hashed, measured against memory, and loaded once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.bandwidth import BYTES, read_bandwidth, weight_bytes
from spsbench.build import Choices, Kept, Loaded, load, resolve
from spsbench.cli.notes import say
from spsbench.cli.session import surprises
from spsbench.experiment import Experiment
from spsbench.models.folder import locate
from spsbench.models.shapes import locate_shape
from spsbench.results import Cell, ModelRef


class Models:
    """The models of each cell; what cells share is loaded once."""

    def __init__(self, offline: bool, threads: int | None = None) -> None:
        self._offline, self._threads = offline, threads
        self.choices: Choices = {}  # of engines
        self._kept: Kept = {}
        self._of: dict[str, Loaded] = {}
        self._said: set[str] = set()

    def __call__(self, cell: Cell) -> Loaded:
        """Load them, or find them again."""
        if cell.id not in self._of:
            loaded = load(
                cell,
                offline=self._offline,
                say=say,
                kept=self._kept,
                choices=self.choices,
                threads=self._threads,
            )
            self._of[cell.id] = loaded
            for line in () if cell.random_weights else surprises(loaded):
                if line not in self._said:
                    say(f"note: {line}")
                    self._said.add(line)
        return self._of[cell.id]


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
