"""The models of a run: found, checked against memory, and loaded once."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from spsbench.checkpoints.weights import BYTES, weight_bytes
from spsbench.errors import UsageError
from spsbench.hardware.contention import loaded, read_clocks
from spsbench.hardware.memory import read_bandwidth
from spsbench.loop.drafter_context import Weights
from spsbench.messages import announce_if_slow, no_lines
from spsbench.methods.resolve import plan_of, resolve
from spsbench.models.cache import Loaded, ModelCache, pair_warnings, stop_warnings
from spsbench.models.folder import local_folder, locate
from spsbench.models.source import locate_shape
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.settings.experiment import Experiment
from spsbench.settings.labels import method
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hash_files
from spsbench.store.starts import Memory

log = logging.getLogger(__name__)


class Models:
    """The models of each cell, with each warning about them logged once."""

    def __init__(self, model_cache: ModelCache) -> None:
        self.model_cache = model_cache
        self._notify: set[str] = set()  # cells
        self._logged: set[str] = set()  # lines

    def __call__(self, cell: Cell) -> Loaded:
        """Load the models of a cell, or return them from the cache."""
        models = self.model_cache.load(cell)
        if cell.id not in self._notify:
            self._notify.add(cell.id)
            self._log_warnings(cell, models)
        return models

    def _log_warnings(self, cell: Cell, models: Loaded) -> None:
        lines = [] if cell.random else [*pair_warnings(models, chat=cell.chat)]
        for line in (*lines, *stop_warnings(models, cell.stop)):
            if line not in self._logged:
                log.info(f"note: {line}")
                self._logged.add(line)


def resolved(experiment: Experiment, resolver: Callable[[Cell], Cell] = resolve) -> Experiment:
    """Return the experiment with every cell checked and its verifier chosen, as ids need.

    Args:
        resolver: resolves a cell; a resolver with tokenizers chooses the drafter as well.

    Raises:
        UsageError: an invalid cell; of several drafters, no valid one.
    """
    parts = []
    for part in experiment.parts:
        drafters = {cell.drafter for cell in part.cells if cell.k != 0 and not cell.elsewhere}
        every = part.cells if len(drafters) < 2 else sensible(part.cells)
        cells = {cell.id: cell for cell in map(resolver, every)}
        with no_lines():
            drafts = part.traced if len(drafters) < 2 else sensible(part.traced)
        traced = {cell.id: cell for cell in map(resolver, drafts if part.traced else ())}
        parts.append(replace(part, cells=tuple(cells.values()), traced=tuple(traced.values())))
    return replace(experiment, parts=tuple(parts))


def sensible(cells: Sequence[Cell]) -> list[Cell]:
    """Return the valid cells of a product with several drafters; logs the cells left out.

    A draft model goes only with drafters that use a draft model.

    Raises:
        UsageError: no cell is valid.
    """
    left: list[Cell] = []
    refused: dict[str, list[str]] = {}  # reason -> methods
    for cell in cells:
        drafts = cell.draft and not cell.elsewhere
        alone = drafts and plan_of(cell.drafter).weights is Weights.NONE
        single = cell.but(draft=None) if alone else cell
        try:
            resolve(single)
            left.append(single)
        except UsageError as error:
            refused.setdefault(str(error), []).append(method(single))
    if not any(cell.k != 0 for cell in left) and refused:
        raise UsageError(next(iter(refused)))
    for reason, methods in refused.items():
        log.info(f"note: left out {', '.join(dict.fromkeys(methods))}: {reason}")
    return left


def folders_for(cells: Iterable[Cell], access: Access) -> dict[ModelSpec, Path]:
    """Return the folder of every model of some cells."""
    models = dict.fromkeys(model for cell in cells for model in cell.models if not model.served)
    return {m: locate_shape(m, access) if m.random else locate(m, access) for m in models}


def memory(
    experiment: Experiment, folders: dict[ModelSpec, Path], earlier: float | None = None
) -> Memory | None:
    """Return the memory bandwidth of this machine, and the bytes read for a token of each target.

    The bandwidth is measured unless `earlier` from an earlier start; `loaded` tells whether other
    work ran meanwhile.
    """
    targets = [cell.target for cell in experiment.cells if not cell.elsewhere]
    sizes = dict[str, int]()
    for model in targets:
        if model.device != "cpu" or model.random or model.quantised:
            continue
        dtype = "float32" if model.dtype == "auto" else model.dtype
        if dtype in BYTES and any(folders[model].glob("*.safetensors")):
            sizes[model.id] = weight_bytes(folders[model], dtype)
    if not sizes:
        return None
    return Memory(earlier, weights=sizes) if earlier else measured(experiment.threads, sizes)


def measured_again(memory: Memory, threads: int | None) -> Memory:
    """Return the better of two measurements: other work can only have lowered the first."""
    again = measured(threads, memory.weights)
    again.bandwidth = max(memory.bandwidth, again.bandwidth)
    return again


def measured(threads: int | None, weights: dict[str, int] | None = None) -> Memory:
    """Measure the memory bandwidth, and whether other work ran meanwhile."""
    before = read_clocks()
    with announce_if_slow("measuring how fast memory is read"):
        bandwidth = read_bandwidth(threads)
    return Memory(bandwidth, loaded(before, read_clocks()), weights or {})


def model_digests(cell: Cell) -> dict[str, str]:
    """Return a digest of the files of each model of a cell that is in a local folder."""
    local = [model for model in cell.models if not model.random]
    return {
        str(model): digest(hash_files(folder))
        for model in local
        if (folder := local_folder(model.id)) is not None
    }
