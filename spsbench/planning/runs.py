"""Runs inside the folder of a plan: texts, traces, and real rounds of the best candidates."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.benchmark.conduct import Conduct, WorkerPool
from spsbench.benchmark.estimate import Pace
from spsbench.benchmark.trace_run import OnProgress
from spsbench.methods.resolve import resolve
from spsbench.models.cache import ModelCache
from spsbench.planning.candidates import candidate_of, replayable
from spsbench.planning.forecast.forecasts import tau_of
from spsbench.planning.forecast.recommendation import Measured
from spsbench.reports.run_tables import tables
from spsbench.settings.cell import Cell, short_hash
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.labels import drafting
from spsbench.spec import Spec
from spsbench.store.traces import read_traces
from spsbench.tasks.jsonl import Jsonl

TEXTS, CONFIRM = "texts", "confirm-"


class Runs:
    """The generations of a plan.

    Args:
        folder: of the plan.
            home: the folder in which the plan was begun; cells name their prompts there even after
            a move.
        chat: prompts in the target's chat template.
        hands: workers that make texts and traces; real rounds, like costs, run on this machine.
    """

    def __init__(
        self,
        folder: Path,
        access: Access,
        model_cache: ModelCache,
        *,
        home: Path,
        seed: int,
        chat: bool,
        system: str,
        watch: Callable[[Pace], None],
        traced: OnProgress,
        stop: Callable[[], bool],
        hands: WorkerPool | None = None,
    ) -> None:
        self.folder, self.access, self.model_cache = folder, access, model_cache
        self._home = home
        self._hands = hands
        self._seed, self._work = seed, {"chat": chat, "system": system}
        self._heard: dict[str, Any] = {"watch": watch, "traced": traced, "stop": stop}

    def texts(self, prompts: Jsonl, path: Path, cells: Sequence[Cell]) -> Path | None:
        """Generate texts of ArS and trace all drafts; None: stopped."""
        out = self.folder / TEXTS
        plain = resolve(cells[0].auto_regressive)
        part = self._part(prompts, path, [plain], cells)
        return self._run(part, out, self._hands)

    def confirm(self, prompts: Jsonl, path: Path, cells: Sequence[Cell]) -> Path | None:
        """Generate with some candidates and ArS, interleaved, and trace; None: stopped."""
        named = short_hash({"cells": sorted(cell.id for cell in cells)}, 8)
        part = self._part(prompts, path, [resolve(cells[0].auto_regressive), *cells], cells)
        return self._run(part, self.folder / f"{CONFIRM}{named}")

    def _part(
        self, prompts: Jsonl, path: Path, cells: Sequence[Cell], traced: Sequence[Cell]
    ) -> Part:
        spec = Spec("jsonl", (("path", str(self._home / path.name)),))
        made = prompts.instruct() if self._work["chat"] else prompts
        work = {**self._work, "task": spec, "prompt_version": made.prompt_version}
        return Part(
            spec=spec,
            task=made,
            cells=tuple(cell.but(**work) for cell in cells),
            limit=None,
            samples=1,
            repeats=1,
            traced=tuple(cell.but(**work) for cell in traced),
        )

    def _run(self, part: Part, out: Path, hands: WorkerPool | None = None) -> Path | None:
        experiment = Experiment(parts=(part,), seed=self._seed, threads=self.access.threads)
        conduct = Conduct(
            place=OutputFolder(out=out, resume=True, score=False),
            access=self.access,
            model_cache=self.model_cache,
            name=out.name,
            hands=hands,
            **self._heard,
        )
        return out if conduct.run(experiment).report is not None else None


def measured(folder: Path, cells: Sequence[Cell]) -> dict[str, Measured]:
    """Return the figures of real rounds, by candidate."""
    names = {bare(cell): str(candidate_of(cell)) for cell in cells}
    found: dict[str, Measured] = {}
    for row in tables(folder)[0].whole:
        name = names.get(bare(row.cell))
        gained, marked = row.at_any_load("speedup")
        ms, _ = row.at_any_load("mean_token_time_ms")
        if name is not None and gained and ms and row.block_efficiency:
            found[name] = Measured(gained, row.block_efficiency, ms, marked)
    foretold = taus(folder, cells)
    return {name: each._replace(foretold=foretold.get(name)) for name, each in found.items()}


def missing(folder: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Return the reasons for missing figures of candidates that ran, by candidate."""
    names = {bare(cell): str(candidate_of(cell)) for cell in cells}
    found: dict[str, str] = {}
    for row in tables(folder)[0].whole:
        name, gained = names.get(bare(row.cell)), row.at_any_load("speedup")[0]
        if name is None or gained is not None:
            continue
        if not row.n:
            found[name] = f"{row.failures} of its generations failed, and none succeeded"
        elif not row.timed + row.loaded:
            found[name] = "all of its timings are of first calls"
        else:
            found[name] = "no prompt was timed with it and with ArS"
    return found


def taus(folder: Path, cells: Sequence[Cell]) -> dict[str, float]:
    """Return tau of candidates by the traces of the same prompts, to exclude prompts as a cause."""
    if not any(folder.glob("traces-*.jsonl")):
        return {}
    traces = read_traces([folder])
    found = {}
    for cell in cells:
        one, texts = candidate_of(cell), traces.of(drafting(cell))
        if replayable(cell) and texts:
            found[str(one)] = tau_of(one, traces.drafts[one.draft], texts)
    return found


def bare(cell: Cell) -> Cell:
    """Return the cell without its source of prompts."""
    return replace(cell.but(task=None, prompt_version="", chat=False, system=""), stored=None)
