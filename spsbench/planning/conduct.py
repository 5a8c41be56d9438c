"""Run a plan: texts, traces, costs, predictions, and real rounds of the best candidates."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from spsbench.benchmark.conduct import RESULTS, WorkerPool
from spsbench.benchmark.jobs import fitting
from spsbench.benchmark.models import Models, folders_for
from spsbench.errors import UsageError
from spsbench.hardware.files import clock
from spsbench.methods.resolve import resolve
from spsbench.metrics.costs import Costs
from spsbench.models.cache import ModelCache
from spsbench.planning.candidates import by_draft, candidate_of, named, replayable
from spsbench.planning.folder import (
    COSTS,
    HELD_BACK,
    PROMPTS,
    Kept,
    Prompts,
    kept,
    lines_of,
    lost,
    opened,
    prompts_of,
)
from spsbench.planning.forecast.recommendation import Measured, Outlook
from spsbench.planning.inputs import Material, check_head, traced_of, traces_given
from spsbench.planning.plan_costs import Pricing
from spsbench.planning.report import Planned
from spsbench.planning.runs import TEXTS, Runs, measured, missing
from spsbench.settings.cell import Cell, Sampling, short_hash
from spsbench.settings.commands import Planning
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.experiment import Part
from spsbench.settings.labels import drafting
from spsbench.settings.task import Sample, Task
from spsbench.spec import Spec
from spsbench.store.provenance import bare
from spsbench.store.traces import Traces, read_traces

PHASES = ("texts", "traces", "costs", "replay", "real rounds")


class Inner(Protocol):
    """Progress of one phase."""

    done: int
    total: int

    def __str__(self) -> str: ...


class Phases:
    """Progress over all phases; each phase is a fifth of the bar, however long the phase takes."""

    total = 100

    def __init__(self) -> None:
        self.done = 0
        self._told = PHASES[0]

    def show(self, phase: str, inner: Inner) -> "Phases":
        """Update the progress of a phase."""
        number = PHASES.index(phase)
        part = inner.done / inner.total if inner.total else 1.0
        self.done = round(100 * (number + part) / len(PHASES))
        self._told = f"{number + 1}/{len(PHASES)} {phase}: {inner}"
        return self

    def __str__(self) -> str:
        return self._told


class Count:
    """A counter: done, total, and estimated time left."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._began = time.monotonic()

    def at(self, done: int, total: int) -> "Count":
        """Return the counter with new numbers."""
        if done == 0:
            self._began = time.monotonic()
        self.done, self.total = done, total
        return self

    def __str__(self) -> str:
        if not self.done:
            return f"{self.done}/{self.total}"
        left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
        return f"{self.done}/{self.total}, {clock(left)} to go"


log = logging.getLogger(__name__)

USUAL = 4  # K of real rounds of methods without a prediction
MOST_UNTOLD = 3
OF_TEXTS = tuple(each.name for each in fields(Sampling))


@dataclass(kw_only=True)
class Planner:
    """The settings of a plan.

    Args:
        cells: the candidates, resolved; the cells differ in method and draft only.
        spec, task: source of the prompts; `planning` sets the number of prompts.
        chat: put prompts into the target's chat template, after an optional `system` message.
        watch: called with the progress.
        stop: called between texts; True ends the plan and keeps finished texts.
            hands: workers that make texts and traces; None = this process. Costs and real rounds
            are always measured on this machine.
    """

    cells: Sequence[Cell]
    spec: Spec
    task: Task
    planning: Planning
    place: OutputFolder
    access: Access
    model_cache: ModelCache
    chat: bool = False
    system: str = ""
    watch: Callable[[Phases], None] = lambda phases: None
    stop: Callable[[], bool] = lambda: False
    hands: WorkerPool | None = None

    def __post_init__(self) -> None:
        self._phases, self._phase, self._count = Phases(), "texts", Count()
        self._models = Models(self.model_cache)
        self.cells = [c.but(chat=self.chat, system=self.system) for c in self.cells]
        self._plain = resolve(self.cells[0].auto_regressive)

    def run(self) -> Planned | None:
        """Make missing texts, traces, costs and real rounds, and sum up; None: stopped.

        Raises:
            SpsError: models, data or a folder that cannot be used.
        """
        if self.access.threads is not None:
            torch.set_num_threads(self.access.threads)
        identity = self._identity()
        folder = self.place.out or RESULTS / f"plan-{short_hash(identity, 8)}"
        self.folder = folder.absolute()
        given = self._given()
        again, over = self.place.resume or self.place.resume_anyway, self.place.overwrite
        before = opened(self.folder, identity, resume=again, overwrite=over)
        self._home = Path((before.home if before else None) or self.folder)
        if before and (told := lost(self.folder, before)):
            log.info(f"note: the end of a log is lost, and is made again: {told}")
        self._note(identity, before.confirm if before else None, before.lines if before else {})

        prompts = self._prompts()
        traces = self._traces(prompts.traced) if given is None else given
        if traces is None or self.stop():
            return None
        if not any(replayable(cell) and drafting(cell) in traces.drafts for cell in self.cells):
            raise UsageError(
                "nothing to predict: expected a draft that a text can tell something of. Add "
                "--drafter ngram or a draft model, or measure these with sps bench"
            )
        costs = self._costs(prompts.traced, traces)
        found = self._outlook(traces, costs)
        known = {sample for _, sample, _ in traces.texts}
        fresh = [each for each in prompts.held_back if each.id not in known]
        real, confirm = self._confirm(found, fresh or prompts.held_back)
        if self.stop():
            return None
        runs = [] if given is not None else [TEXTS]
        runs += [] if confirm is None else [confirm]
        self._note(identity, confirm, lines_of(self.folder, runs))
        return self._planned(found, real, confirm)

    def _identity(self) -> dict[str, Any]:
        """Return the fields that must not change when a plan resumes: texts and their sources."""
        cell = bare(self._plain)
        kept = {n: v for n, v in cell.items() if n.startswith("target.") or n in OF_TEXTS}
        own = self.planning
        return {
            **kept,
            "task": str(self.spec),
            "prompt_version": self.task.prompt_version,
            "chat": self.chat,
            "system": self.system,
            "limit": own.limit,
            "held_back": own.held_back,
            "trace": list(own.trace),
            "costs": None if own.costs is None else str(own.costs),
        }

    def _note(
        self, identity: Mapping[str, Any], confirm: str | None, lines: Mapping[str, int]
    ) -> None:
        texts = [str(Path(each).absolute()) for each in self.planning.trace] or [TEXTS]
        costs = self.planning.costs
        Kept(
            cells=self.cells,
            identity=identity,
            texts=texts,
            costs=COSTS if costs is None else str(costs.absolute()),
            confirm=confirm,
            factors=self.planning.factors,
            home=str(self._home),
            lines=lines,
        ).save(self.folder)

    def _prompts(self) -> Prompts:
        """Return the prompts, cut or refused where longer than the shortest context of a model."""
        firsts = [cells[0] for cells in by_draft(self.cells).values()]
        part = Part(
            spec=self.spec,
            task=self.task,
            cells=(self._plain, *firsts),
            limit=None,
            samples=1,
            repeats=1,
        )
        own = self.planning
        return prompts_of(
            self.spec,
            self.task,
            fitting(part, self._models),
            own.limit,
            own.held_back if own.confirm else 0,
        )

    def _runs(self) -> Runs:
        return Runs(
            self.folder,
            self.access,
            self.model_cache,
            home=self._home,
            seed=self._plain.sampling.seed,
            chat=self.chat,
            system=self.system,
            watch=lambda pace: self._show(self._phase, pace),
            traced=lambda done, total: self._show("traces", self._count.at(done, total)),
            stop=self.stop,
            hands=self.hands,
        )

    def _show(self, phase: str, inner: Inner) -> None:
        self.watch(self._phases.show(phase, inner))

    def _given(self) -> Traces | None:
        """Return traces of an earlier run; None: the plan has to trace."""
        if not self.planning.trace:
            return None
        paths = [Path(each) for each in self.planning.trace]
        traces = traces_given(paths)
        check_head(traces, self.cells, self._folders(), paths[0])
        return traces

    def _traces(self, samples: Sequence[Sample]) -> Traces | None:
        path = self.folder / PROMPTS
        made = self._runs().texts(kept(samples, path, self._home), path, self.cells)
        return None if made is None else read_traces([made])

    def _folders(self) -> dict[Any, Path]:
        return folders_for((self._plain, *self.cells), self.access)

    def _costs(self, samples: Sequence[Sample], traces: Traces) -> Costs:
        return Pricing(
            folder=self.folder,
            planning=self.planning,
            plain=self._plain,
            cells=self.cells,
            models=self._models,
            watch=lambda pace: self._show("costs", pace),
        ).costs(samples, traces)

    def _outlook(self, traces: Traces, costs: Costs) -> Outlook:
        cells = [
            cell for cell in self.cells if replayable(cell) and drafting(cell) in traces.drafts
        ]
        material = Material(costs=costs, cells=cells, traced=traced_of(traces))
        return material.outlook(
            lambda done, total: self._show("replay", self._count.at(done, total))
        )

    def _confirm(
        self, found: Outlook, samples: Sequence[Sample]
    ) -> tuple[dict[str, Measured], str | None]:
        """Run real rounds of the best of each method, and of methods without a prediction."""
        own = self.planning
        if own.unmeasured or not samples:
            return {}, None
        by_name = named(self.cells)
        best = [by_name[str(f.candidate)] for f in found.by_method[: own.confirm]]
        best += self._untold(found)
        path = self.folder / HELD_BACK
        self._phase = "real rounds"
        made = self._runs().confirm(kept(samples, path, self._home), path, best)
        return ({}, None) if made is None else (measured(made, best), made.name)

    def _untold(self, found: Outlook) -> list[Cell]:
        """Return one cell of each method that traces cannot predict, for a measurement alone."""
        told = {f.candidate.method for f in found.forecasts}
        rest: dict[str, Cell] = {}
        for cell in sorted(self.cells, key=lambda cell: abs((cell.k or USUAL) - USUAL)):
            method = candidate_of(cell).method
            if method not in told:
                rest.setdefault(method, cell)
        for method in list(rest)[MOST_UNTOLD:]:
            log.info(f"note: {method} is neither predicted nor measured: sps bench measures it")
        return list(rest.values())[:MOST_UNTOLD]

    def _planned(
        self, found: Outlook, real: Mapping[str, Measured], confirm: str | None
    ) -> Planned:
        return Planned(
            folder=self.folder,
            outlook=found,
            cells=named(self.cells),
            measured=real,
            missing={} if confirm is None else missing(self.folder / confirm, self.cells),
            unmeasured=self.planning.unmeasured,
            about=f"{self._plain.models.target}, {self.task.title}",
            every=self.planning.every,
        )
