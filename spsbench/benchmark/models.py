"""The models of a run: found, checked against memory, and loaded once."""

import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spsbench.checkpoints.weights import BYTES, prompt_operations, token_weight_bytes
from spsbench.engines.session.engine_config import threads as threads_of_torch
from spsbench.hardware.contention import read_clocks, was_disturbed
from spsbench.hardware.memory import read_bandwidth
from spsbench.loop.drafter_context import Weights
from spsbench.messages import announce_if_slow
from spsbench.methods.resolve import Resolver, plan_of, resolve, resolve_valid
from spsbench.models.cache import ModelCache, pair_warnings, stop_warnings
from spsbench.models.folder import local_folder, locate
from spsbench.models.source import locate_shape
from spsbench.settings.cell import Cell, CellRequest
from spsbench.settings.execution import Access
from spsbench.settings.experiment import Experiment, ExperimentRequest
from spsbench.settings.models import ModelSpec
from spsbench.store.provenance import digest, hash_files
from spsbench.store.starts import Memory

log = logging.getLogger(__name__)

SIDE = 1024  # rows of the square matrices whose products are timed


class Models:
    """The models of each cell, with each warning about them logged once."""

    def __init__(self, model_cache: ModelCache) -> None:
        self.model_cache = model_cache
        self._noted: set[str] = set()  # cells
        self._logged: set[str] = set()  # lines

    def __call__(self, cell: Cell) -> Any:
        """Load the models of a cell, or return them from the cache: see `ModelCache.open`."""
        models = self.model_cache.open(cell)
        if cell.id not in self._noted:
            self._noted.add(cell.id)
            stops = stop_warnings(cell, models.tokenizer)
            for line in (*pair_warnings(cell, models, chat=cell.chat), *stops):
                if line not in self._logged:
                    log.info(f"note: {line}")
                    self._logged.add(line)
        return models


def resolve_experiment(request: ExperimentRequest, resolver: Resolver = resolve) -> Experiment:
    """Return the experiment of a request, with resolved cells.

    Of several drafters, invalid cells are logged and left out; a draft model goes to those that use
    one. Raises UsageError for an invalid request and, of several drafters, if no cell left drafts.
    """
    parts = []
    for part, requests, is_traced in request.parts:
        if len({r.drafter for r in requests if r.k != 0 and not r.elsewhere}) > 1:
            cells = resolve_valid(map(without_idle_draft, requests), resolver)
        else:
            cells = list({cell.id: cell for cell in map(resolver, requests)}.values())
        traced = tuple(cell for cell in cells if is_traced and cell.k != 0)
        parts.append(replace(part, cells=tuple(cells), traced=traced))
    return replace(request.whole, parts=tuple(parts))


def without_idle_draft(request: CellRequest) -> CellRequest:
    """Return the request without a draft model that its drafter has no use for."""
    if request.draft is None or request.elsewhere:
        return request
    is_idle = plan_of(request.drafter).weights is Weights.NONE
    return request.but(draft=None) if is_idle else request


def folders_for(cells: Iterable[Cell], access: Access) -> dict[ModelSpec, Path]:
    """Return the folder of every model of some cells but served ones; SpsError: one is absent."""
    models = dict.fromkeys(model for cell in cells for model in cell.models if not model.served)
    return {m: locate_shape(m, access) if m.random else locate(m, access) for m in models}


def memory(
    experiment: Experiment, folders: dict[ModelSpec, Path], earlier: Memory | None = None
) -> Memory | None:
    """Return the bandwidth here and, by target id, bytes of a token and seconds of a prompt token.

    None where no target is plain weights on a CPU. Bandwidth and seconds are those of `earlier` if
    it has all targets; else all are measured, and `loaded` tells of other work.
    """
    targets = dict.fromkeys(cell.target for cell in experiment.cells if not cell.elsewhere)
    weights, products = dict[str, int](), dict[str, tuple[str, int]]()
    for model in targets:
        if model.device != "cpu" or model.random or model.quantised:
            continue
        dtype = "float32" if model.dtype == "auto" else model.dtype
        if dtype in BYTES and any(folders[model].glob("*.safetensors")):
            weights[model.id] = token_weight_bytes(folders[model], dtype)
            products[model.id] = dtype, prompt_operations(folders[model])
    if not weights:
        return None
    if earlier and weights.keys() <= earlier.prompt.keys():
        return Memory(earlier.bandwidth, weights=weights, prompt=earlier.prompt)
    speeds = measure_speeds(experiment.threads, (dtype for dtype, _ in products.values()))
    rates = {name: speeds.products.get(dtype) for name, (dtype, _) in products.items()}
    prompt = {name: products[name][1] / rate for name, rate in rates.items() if rate}
    return Memory(speeds.bandwidth, speeds.loaded, weights, prompt)


class Speeds(NamedTuple):
    """The speeds of this machine, and whether other work ran while they were measured."""

    bandwidth: float  # bytes a second that memory is read at
    products: dict[str, float]  # dtype -> operations a second
    loaded: bool


def measure_speeds(threads: int | None, dtypes: Iterable[str] = ()) -> Speeds:
    """Measure how fast `threads` (None: torch's) read memory, and multiply in each of `dtypes`."""
    before = read_clocks()
    with announce_if_slow("measuring how fast memory is read"), threads_of_torch(threads):
        bandwidth, products = read_bandwidth(threads), product_rates(dtypes)
    return Speeds(bandwidth, products, was_disturbed(before, read_clocks()))


def product_rates(dtypes: Iterable[str], seconds: float = 0.3) -> dict[str, float]:
    """Measure, by dtype, the operations a second of torch's products of square matrices.

    The best of those in `seconds` for each: a lower bound of what a processor can do, by FMA in
    float32, by a matrix unit or dot products in others. A dtype that torch cannot multiply is left
    out.
    """
    rates: dict[str, float] = {}
    for dtype in dict.fromkeys(dtypes):
        x = torch.ones(SIDE, SIDE).to(getattr(torch, dtype))
        multiply, best, end = torch._int_mm if dtype == "int8" else torch.mm, math.inf, math.inf
        with suppress(RuntimeError):
            while (began := time.perf_counter()) < end:
                multiply(x, x)
                best = min(best, time.perf_counter() - began)
                end = min(end, began + seconds)
            rates[dtype] = 2 * SIDE**3 / best
    return rates


def model_digests(cell: Cell) -> dict[str, str]:
    """Return model -> digest of its files, for the trained models of a cell in local folders."""
    local = [model for model in cell.models if not (model.random or model.served)]
    return {
        str(model): digest(hash_files(folder, model.adapter))
        for model in local
        if (folder := local_folder(model.id)) is not None
    }
