"""Run a plan: texts, traces, costs, predictions, and real rounds of the best candidates."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.benchmark.conduct import RESULTS, Benchmark
from spsbench.benchmark.conductor import Conductor
from spsbench.benchmark.jobs import fitting, prompt_ids
from spsbench.benchmark.models import Models, folders_for
from spsbench.errors import UsageError
from spsbench.methods.resolve import resolve
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import read_costs
from spsbench.models.cache import Loaded, ModelCache
from spsbench.planning.candidates import by_draft, candidate_of, named, replayable
from spsbench.planning.forecast.batch_gains import check_batches, forecast_batches
from spsbench.planning.forecast.recommendation import Forecasts, Measured
from spsbench.planning.inputs import (
    check_head,
    check_priced,
    contexts_of,
    forecasts_of,
    measured_costs,
    read_whole_traces,
)
from spsbench.planning.measure import measure, setting_of
from spsbench.planning.measure_batches import measure_batches, with_batches
from spsbench.planning.plan_folder import (
    COSTS,
    HELD_BACK,
    PROMPTS,
    TEXTS,
    PlanFile,
    Prompts,
    begin_plan,
    lost,
    prompts_of,
    write_prompts,
)
from spsbench.planning.progress import Count, Counted, PlanProgress
from spsbench.planning.report import Planned, real_rounds
from spsbench.settings.cell import SAMPLING_FIELDS, Cell, short_hash
from spsbench.settings.commands import Planning
from spsbench.settings.execution import OutputFolder, Workers
from spsbench.settings.experiment import Experiment, Part
from spsbench.settings.labels import drafting
from spsbench.settings.task import Sample, Task
from spsbench.spec import Spec
from spsbench.store.provenance import bare
from spsbench.store.traces import Traces, read_traces

LONGEST = 4096  # most tokens of prompts for the measurement of costs
CONFIRM = "confirm-"  # begins the folder of the real rounds


log = logging.getLogger(__name__)

USUAL = 4  # K of real rounds of methods without a prediction
MOST_UNPREDICTED = 3


@dataclass(kw_only=True)
class Planner(Conductor):
    """Decides whether to speculate, and how, in a folder that can be continued.

    Args:
        cells: the candidates, resolved; the cells differ in method and draft only.
        spec, task: source of the prompts; `planning` sets the number of prompts.
        chat: put prompts into the target's chat template, after an optional `system` message.
        model_cache: the loaded models.
        command: the command line that goes on with the plan, shown when the plan is stopped.

    Workers of the pool make texts and traces; costs and real rounds are measured by this process.
    """

    cells: Sequence[Cell]
    spec: Spec
    task: Task
    planning: Planning
    model_cache: ModelCache
    chat: bool = False
    system: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        self._phases, self._phase, self._count = PlanProgress(), "texts", Count()
        self._models = Models(self.model_cache)
        self.cells = [c.but(chat=self.chat, system=self.system) for c in self.cells]
        self._plain = resolve(self.cells[0].auto_regressive)

    def run(self) -> Planned | None:
        """Make missing texts, traces, costs and real rounds, and sum up; None: stopped.

        Raises:
            SpsError: models, data or a folder that cannot be used.
        """
        self._begin()
        prompts = self._prompts()
        traces = self._earlier or self._traces(prompts.traced)
        if traces is None or self.stop():
            return None
        cells = self._predictable(traces)
        costs = self._costs(prompts.traced, traces)
        forecasts = self._forecasts(cells, traces, costs)
        figures, reasons = self._real_rounds(self._best(forecasts), prompts, traces)
        if self.stop():
            return None
        self._note(finished=True)
        by_name = named(self.cells)
        return Planned(
            folder=self.folder,
            forecasts=forecasts,
            batches=forecast_batches(self.planning.batch_sizes(), forecasts, by_name),
            cells=by_name,
            measured=figures,
            missing=reasons,
            unmeasured=self.planning.unmeasured,
            about=f"{self._plain.target}, {self.task.title}",
            every=self.planning.every,
        )

    def _begin(self) -> None:
        """Read given traces, and create the folder or go on with the plan in it."""
        self.use_threads(self.access.threads)
        self._fields = self._identity()
        folder = self.place.out or RESULTS / f"plan-{short_hash(self._fields, 8)}"
        self.folder = folder.absolute()
        self._earlier = self._earlier_traces()
        again, over = self.place.resume, self.place.overwrite
        before = begin_plan(self.folder, self._fields, resume=again, overwrite=over)
        self._new_prompts = before.new_prompts if before else None
        self._home = Path((before.home if before else None) or self.folder)
        if before and (missing := lost(self.folder, before)):
            log.info(f"note: the end of a log is lost, and is made again: {missing}")
        self._confirm = before.confirm if before else None
        self._finished = before is not None and before.finished
        self._note(finished=self._finished)

    def _identity(self) -> dict[str, Any]:
        """Return the fields that must not change when a plan resumes: texts and their sources."""
        cell = bare(self._plain)
        kept = {n: v for n, v in cell.items() if n.startswith("target.") or n in SAMPLING_FIELDS}
        planning = self.planning
        return {
            **kept,
            "task": str(self.spec),
            "prompt_version": self.task.prompt_version,
            "chat": self.chat,
            "system": self.system,
            "limit": planning.limit,
            "held_back": planning.held_back,
            "sample_seed": planning.sample_seed,
            "trace": list(planning.trace),
            "costs": None if planning.costs is None else str(planning.costs),
        }

    def _note(self, *, finished: bool) -> None:
        texts = [str(Path(path).absolute()) for path in self.planning.trace] or [TEXTS]
        costs = self.planning.costs
        PlanFile(
            cells=self.cells,
            identity=self._fields,
            texts=texts,
            costs=COSTS if costs is None else str(costs.absolute()),
            confirm=self._confirm,
            factors=self.planning.factors,
            home=str(self._home),
            new_prompts=self._new_prompts,
            finished=finished,
            command=self.command,
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
        planning = self.planning
        prompts = prompts_of(
            self.spec,
            self.task,
            fitting(part, self._models),
            planning.limit,
            planning.held_back if planning.confirm else 0,
            planning.sample_seed,
        )
        self._new_prompts = len(prompts.held_back) or None
        return prompts

    def _show(self, phase: str, inner: Counted) -> None:
        self.watch(self._phases.show(phase, inner))

    def _earlier_traces(self) -> Traces | None:
        """Return traces of an earlier run; None: the plan has to trace."""
        if not self.planning.trace:
            return None
        paths = [Path(path) for path in self.planning.trace]
        traces = read_whole_traces(paths)
        check_head(traces, self.cells, self._folders(), paths[0])
        return traces

    def _traces(self, samples: Sequence[Sample]) -> Traces | None:
        """Generate texts of ArS and trace all drafts; None: stopped."""
        out = self.folder / TEXTS
        part = self._part(samples, PROMPTS, [self._plain], self.cells)
        return read_traces([out]) if self._run(part, out, self.workers) else None

    def _folders(self) -> dict[Any, Path]:
        return folders_for((self._plain, *self.cells), self.access)

    def _part(
        self,
        samples: Sequence[Sample],
        file: str,
        cells: Sequence[Cell],
        traced: Sequence[Cell],
    ) -> Part:
        """Return cells over prompts, which are written to a file of the plan."""
        task = write_prompts(samples, self.folder / file, self._home)
        spec = Spec("jsonl", (("path", str(self._home / file)),))
        prompted_task = task.instruct() if self.chat else task
        work = {
            "task": spec,
            "prompt_version": prompted_task.prompt_version,
            "chat": self.chat,
            "system": self.system,
        }
        return Part(
            spec=spec,
            task=prompted_task,
            cells=tuple(cell.but(**work) for cell in cells),
            limit=None,
            samples=1,
            repeats=1,
            traced=tuple(cell.but(**work) for cell in traced),
        )

    def _run(self, part: Part, out: Path, workers: Workers = Workers()) -> bool:
        """Make the missing records and traces of a part; False: stopped."""
        seed = self._plain.seed
        benchmark = Benchmark(
            place=OutputFolder(out=out, resume=True, score=False),
            access=self.access,
            model_cache=self.model_cache,
            name=out.name,
            workers=workers,
            watch=lambda progress: self._show(self._phase, progress),
            traced=lambda done, total: self._show(
                "traces" if self._phase == "texts" else self._phase, self._count.at(done, total)
            ),
            stop=self.stop,
        )
        experiment = Experiment(parts=(part,), seed=seed, threads=self.access.threads)
        return benchmark.run(experiment).finished is not None

    def _costs(self, samples: Sequence[Sample], traces: Traces) -> Costs:
        """Return the costs of every traced draft, given or measured, under hypothetical factors."""
        costs_path, sizes = self.planning.costs, self.planning.batch_sizes()
        if costs_path is not None:
            costs = read_costs(costs_path)
            check_priced([*traces.drafts], costs, str(costs_path))
            if sizes:
                check_batches(sizes, costs)
        else:
            pairs = self._pairs(traces)
            text = self._text(samples, pairs[0][1])
            costs = measured_costs(
                self.folder / COSTS,
                setting_of([(self._plain, pairs[0][1]), *pairs]),
                [drafting(cell) for cell, _ in pairs],
                lambda: measure(
                    pairs,
                    text,
                    contexts=contexts_of(traces),
                    seconds=self.planning.cost_seconds,
                    watch=lambda progress: self._show("costs", progress),
                ),
            )
            if sizes:
                costs = with_batches(
                    costs,
                    self.folder / COSTS,
                    [drafting(cell) for cell, _ in pairs],
                    sizes,
                    lambda some: measure_batches(
                        pairs,
                        text,
                        some,
                        contexts=contexts_of(traces),
                        most_k=max(cell.k or 0 for cell in self.cells),
                        seconds=self.planning.cost_seconds,
                        watch=lambda progress: self._show("costs", progress),
                    ),
                )
        return costs.scaled(**self.planning.factors)

    def _pairs(self, traces: Traces) -> list[tuple[Cell, Loaded]]:
        """Return a cell for each draft and rule, with its models."""
        traced_cells = [cell for cell in self.cells if drafting(cell) in traces.drafts]
        firsts = {(drafting(c), str(c.verifier)): c for c in reversed(traced_cells)}
        return [(cell, self._models(cell)) for cell in reversed(firsts.values())]

    def _text(self, samples: Sequence[Sample], models: Loaded) -> list[int]:
        """Return the tokens of all prompts, concatenated."""
        tokens: list[int] = []
        for sample in samples:
            tokens += prompt_ids(models, self._plain, sample.prompt)
            if len(tokens) >= LONGEST:
                break
        return tokens[:LONGEST]

    def _predictable(self, traces: Traces) -> list[Cell]:
        """Return the candidates that the traces can predict.

        Raises:
            UsageError: there is none.
        """
        cells = [c for c in self.cells if replayable(c) and drafting(c) in traces.drafts]
        if not cells:
            raise UsageError(
                "nothing to predict: expected a draft that a text can tell something of. Add "
                "`drafter` ngram or a draft model, or measure these with sps bench"
            )
        return cells

    def _forecasts(self, cells: Sequence[Cell], traces: Traces, costs: Costs) -> Forecasts:
        def notify(done: int, total: int) -> None:
            self._show("replay", self._count.at(done, total))

        return forecasts_of(cells, traces, costs, self._new_prompts, notify)

    def _best(self, forecasts: Forecasts) -> list[Cell]:
        """Return the best cell of each method, and cells of methods without a prediction."""
        if self.planning.unmeasured:
            return []
        by_name = named(self.cells)
        best = [by_name[str(f.candidate)] for f in forecasts.by_method[: self.planning.confirm]]
        return best + self._unpredicted(forecasts)

    def _real_rounds(
        self, best: Sequence[Cell], prompts: Prompts, traces: Traces
    ) -> tuple[dict[str, Measured], dict[str, str]]:
        """Run real rounds of some cells on the prompts held back, in a folder of the plan."""
        earlier, self._confirm = self._confirm, None
        if not best or self.planning.unmeasured or not prompts.held_back:
            return {}, {}
        self._phase = "real rounds"
        self._confirm = CONFIRM + short_hash({"cells": sorted(cell.id for cell in best)}, 8)
        self._note(finished=self._finished and self._confirm == earlier)
        traced = {sample for _, sample, _ in traces.texts}
        fresh = [prompt for prompt in prompts.held_back if prompt.id not in traced]
        part = self._part(fresh or prompts.held_back, HELD_BACK, [self._plain, *best], best)
        run = self._run(part, self.folder / self._confirm)
        return real_rounds(self.folder / self._confirm, self.cells) if run else ({}, {})

    def _unpredicted(self, forecasts: Forecasts) -> list[Cell]:
        """Return one cell of each method that traces cannot predict, for a measurement alone."""
        predicted = {f.candidate.method for f in forecasts.all}
        unpredicted: dict[str, Cell] = {}
        for cell in sorted(self.cells, key=lambda cell: abs((cell.k or USUAL) - USUAL)):
            method = candidate_of(cell).method
            if method not in predicted:
                unpredicted.setdefault(method, cell)
        for method in list(unpredicted)[MOST_UNPREDICTED:]:
            log.info(f"note: {method} is neither predicted nor measured: sps bench measures it")
        return list(unpredicted.values())[:MOST_UNPREDICTED]
