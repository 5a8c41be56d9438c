"""Run a plan: texts, traces, costs, predictions, and real rounds of the best candidates."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from spsbench.benchmark.conduct import RESULTS, Benchmark
from spsbench.benchmark.jobs import fitting, prompt_ids
from spsbench.benchmark.models import Models, folders_for, measure_speeds
from spsbench.errors import DataError, UsageError
from spsbench.hardware.files import clock
from spsbench.messages import ignore
from spsbench.methods.build import use_threads
from spsbench.metrics.costs import Costs
from spsbench.metrics.costs_file import dumps, read_costs
from spsbench.metrics.sums import group_by
from spsbench.metrics.surfaces import FEWEST_TURNS
from spsbench.models.cache import Loaded, ModelCache
from spsbench.models.folder import local_folder
from spsbench.planning.candidates import replayable
from spsbench.planning.forecast.batch_gains import batch_costs_of
from spsbench.planning.forecast.forecasts import Forecasts
from spsbench.planning.inputs import check_head, forecasts_of, read_whole_traces, real_rounds
from spsbench.planning.measure import MOST_TURNS, PhaseCount, measure, measure_batches, setting_of
from spsbench.planning.plan_folder import (
    COSTS,
    HELD_BACK,
    PROMPTS,
    TEXTS,
    begin_plan,
    costs_of_plan,
    draw_task_prompts,
    write_prompts,
)
from spsbench.planning.report import Planned
from spsbench.settings.cell import SAMPLING_FIELDS, Cell, short_hash
from spsbench.settings.commands import Planning
from spsbench.settings.execution import Access, OutputFolder, Workers
from spsbench.settings.experiment import Experiment, TaskPart
from spsbench.settings.method import Drafting, Method
from spsbench.settings.task import Fits, Sample, Task
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file
from spsbench.store.provenance import compared_fields
from spsbench.store.traces import Traces, read_traces

log = logging.getLogger(__name__)

LONGEST = 4096  # most tokens of prompts for the measurement of costs
APART = 64  # least distance of two contexts, in tokens
CONFIRM = "confirm-"  # begins the folder of the real rounds
USUAL = 4  # K of real rounds of methods without a prediction
MOST_UNPREDICTED = 3
once = partial(TaskPart, limit=None, samples=1, repeats=1)
PHASES = ("texts", "traces", "costs", "replay", "real rounds")


class PlanProgress:
    """Progress over all phases; each phase is a fifth of the bar, however long the phase takes.

    The bar waits for what is done again (costs that contradict each other, traces of real rounds).
    """

    total = 100

    def __init__(self) -> None:
        self.done = self._phase = 0
        self._text = PHASES[0]

    def show(self, phase: str, inner: Any) -> "PlanProgress":
        """Move the bar of the whole plan to `phase`, never back, and return the bar.

        `inner` is the progress in the phase: `done`, `total` (0: all is done); its `str` is shown.
        """
        number = self._phase = max(PHASES.index(phase), self._phase)
        part = inner.done / inner.total if inner.total else 1.0
        self.done = max(self.done, round(100 * (number + part) / len(PHASES)))
        step = f"{number + 1}/{len(PHASES)} {PHASES[number]}"
        self._text = f"{self.done}% of the plan, {step}: {inner}"
        return self

    def __str__(self) -> str:
        return self._text


@dataclass(kw_only=True)
class Planner:
    """Decides whether to speculate, and how, in a folder that can be continued.

    `cells` are the candidates, resolved, which differ in method and draft only; `spec` and `task`
    are the source of the prompts, whose number `planning` sets. `place` is the folder, and whether
    to go on with what is in it; `access` has offline mode, pickle files and threads. `command` is
    the command line that goes on with the plan. `watch` is called with the progress; `stop` is
    polled between pieces of work: True ends the work and keeps finished pieces. Workers of the pool
    make texts and traces; costs and real rounds are measured by this process.
    """

    cells: Sequence[Cell]
    spec: Spec
    task: Task
    planning: Planning
    model_cache: ModelCache
    place: OutputFolder
    access: Access
    command: str = ""
    watch: Callable[[Any], None] = ignore
    stop: Callable[[], bool] = lambda: False
    workers: Workers = Workers()

    def __post_init__(self) -> None:
        self._progress, self._count = PlanProgress(), PhaseCount()
        self._models = Models(self.model_cache)
        self._plain = self.cells[0].auto_regressive

    def run(self) -> Planned | None:
        """Make missing texts, traces, costs and real rounds, and sum up; None: stopped.

        The plan's folder is made or resumed, and its record is saved after each step. SpsError:
        models, data or a folder that cannot be used.
        """
        self._begin()
        traced, held_back = self._prompts(self._fits())
        self._note(new_prompts=len(held_back) or None)
        texts = TEXTS, traced, PROMPTS, [self._plain], self.cells, self.workers
        traces = self._given
        if traces is None and self._run(*texts):
            traces = read_traces([self.folder / TEXTS])
        if traces is None or self.stop():
            return None
        costs = self._costs(traced, traces)
        forecasts = forecasts_of(self._record, traces, costs, partial(self._counted, "replay"))
        self._real_rounds(self._best(forecasts), held_back, traces)
        if self.stop():
            return None
        self._note(finished=True)
        rounds = real_rounds(self.folder, self.cells, self._record.confirm)
        return Planned(self._record, self.planning, forecasts, *rounds, self.folder)

    def outlook(self) -> Iterator[str]:
        """Yield lines: the generations and tokens of each phase, and their sum.

        Loads no model and writes nothing. A local target on a CPU adds the least time of it all,
        for which the speed of memory is measured, in a second. DataError: no prompt.
        """
        planning, cells = self.planning, self.cells
        traced, held_back = self._prompts(lambda sample: True)
        tokens, texts, real = cells[0].max_new_tokens, len(traced), 0
        if planning.trace:
            texts = 0
            yield f"texts and traces: given ({', '.join(planning.trace)})"
        else:
            yield f"texts: {texts} generations of up to {tokens} tokens of {cells[0].target}"
            drafts = ", ".join(dict.fromkeys(str(Drafting.of(cell)) for cell in cells))
            yield f"traces: {drafts}, along {texts} texts each"
        turns = f"{FEWEST_TURNS} to {MOST_TURNS} turns, about {clock(planning.cost_seconds)}"
        measured = f"{turns} or as long as the fewest turns take"
        yield f"costs: {f'given ({planning.costs})' if planning.costs else measured}"
        methods = {Method.of(cell).at_any_k: replayable(cell) for cell in cells}
        yield f"replay: {sum(map(replayable, cells))} of {len(cells)} candidates are predicted"
        if planning.unmeasured:
            yield f"real rounds: none, since {planning.unmeasured}"
        else:
            predicted = sum(methods.values())
            others = min(MOST_UNPREDICTED, len(methods) - predicted)
            best = min(planning.confirm, predicted) + others
            real = (best + 1) * len(held_back)
            yield (
                f"real rounds: {best} candidates and ArS over {len(held_back)} held back, "
                f"{real} generations of up to {tokens} tokens"
            )
        count = (texts + real) * tokens
        yield f"in all {texts + real} generations, {count:,} tokens at most"
        plain = cells[0].target
        folder = None if plain.random or plain.device != "cpu" else local_folder(plain.id)
        if folder is not None and count:
            weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            speed = measure_speeds(torch.get_num_threads()).bandwidth
            yield (
                f"about {clock(count * weights / speed)} at least, if every token reads "
                f"{weights / 1e6:,.0f} MB of weights at {speed / 1e9:.1f} GB/s; "
                "sps bench --dry-run times a few tokens"
            )

    def _begin(self) -> None:
        """Read and check given traces, make or resume the plan's folder, and save its record.

        Sets torch's threads, `folder` (`out`, or named by a hash), `_record`, `_given` (traces, or
        None). MismatchError: other models' traces, another plan. SpsError: unusable traces, folder.
        """
        use_threads(self.access.threads)
        identity, planning = self._identity(), self.planning
        self.folder = (self.place.out or RESULTS / f"plan-{short_hash(identity, 8)}").absolute()
        self._given = read_whole_traces(planning.trace) if planning.trace else None
        if self._given is not None:
            folders = folders_for((self._plain, *self.cells), self.access)
            check_head(self._given, self.cells, folders, Path(planning.trace[0]))
        self._record = begin_plan(self.folder, identity, self.place)
        self._note(
            cells=self.cells,
            texts=[str(Path(path).absolute()) for path in planning.trace] or [TEXTS],
            costs=str(planning.costs.absolute()) if planning.costs else COSTS,
            factors=planning.factors,
            command=self.command,
        )

    def _identity(self) -> dict[str, Any]:
        """Return the fields that a plan must resume with: target, sampling, prompts and sources."""
        cell, planning = compared_fields(self._plain), self.planning
        return {
            **{n: v for n, v in cell.items() if n.startswith("target.") or n in SAMPLING_FIELDS},
            "task": str(self.spec),
            "prompt_version": self.task.prompt_version,
            "chat": self._plain.chat,
            "system": self._plain.system,
            "limit": planning.limit,
            "held_back": planning.held_back,
            "sample_seed": planning.sample_seed,
            "trace": list(planning.trace),
            "costs": None if planning.costs is None else str(planning.costs),
        }

    def _note(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._record.save(self.folder)

    def _show(self, phase: str, inner: Any) -> None:
        self.watch(self._progress.show(phase, inner))

    def _counted(self, phase: str, done: int, total: int) -> None:
        self._show(phase, self._count.at(done, total))

    def _prompts(self, fits: Fits) -> tuple[list[Sample], list[Sample]]:
        """Return the prompts to trace and those that are held back for real rounds."""
        planning = self.planning
        back = planning.held_back if planning.confirm else 0
        return draw_task_prompts(
            self.spec, self.task, fits, planning.limit, back, planning.sample_seed
        )

    def _fits(self) -> Fits:
        """Load all models; return a test of whether a prompt and its new tokens fit them all."""
        cells = {Drafting.of(cell): cell for cell in reversed(self.cells)}.values()
        part = once(spec=self.spec, task=self.task, cells=(self._plain, *cells))
        return fitting(part, self._models)

    def _run(
        self,
        name: str,
        samples: Sequence[Sample],
        file: str,
        cells: Sequence[Cell],
        traced: Sequence[Cell],
        workers: Workers = Workers(),
    ) -> bool:
        """Make missing records of `cells` and traces of `traced`; return whether it was finished.

        The run is the folder `name` of the plan, and reads the file `file`, to which the prompts of
        `samples` are written. MismatchError: the file has other prompts. SpsError: the run fails.
        """
        home = Path(self._record.home)
        jsonl = write_prompts(samples, self.folder / file, home)
        spec = Spec("jsonl", (("path", str(home / file)),))
        task = jsonl.instruct() if self._plain.chat else jsonl
        work = {"task": spec, "prompt_version": task.prompt_version}
        work_cells, work_traced = ([c.but(**work) for c in some] for some in (cells, traced))
        part = once(spec=spec, task=task, cells=tuple(work_cells), traced=tuple(work_traced))
        phase, tracing = ("texts", "traces") if name == TEXTS else ("real rounds", "real rounds")
        benchmark = Benchmark(
            place=OutputFolder(out=self.folder / name, resume=True, score=False),
            access=self.access,
            model_cache=self.model_cache,
            name=name,
            workers=workers,
            watch=partial(self._show, phase),
            traced=partial(self._counted, tracing),
            stop=self.stop,
        )
        experiment = Experiment(parts=(part,), seed=self._plain.seed, threads=self.access.threads)
        return benchmark.run(experiment).finished is not None

    def _costs(self, samples: Sequence[Sample], traces: Traces) -> Costs:
        """Return the costs of the traced drafts, times the plan's hypothetical factors.

        They are read from `costs`, if that is given; else from the plan's folder, for which they
        are measured along `samples` where those there are of another setting or lack a draft, or
        batches as large as `batch`. UsageError: no draft can be predicted, or as `measure`.
        DataError: the given file lacks a traced draft, or batches as large.
        """
        path, sizes = self.planning.costs, sorted(self.planning.batch)
        if not any(replayable(c) and Drafting.of(c) in traces.drafts for c in self.cells):
            raise UsageError(
                "nothing to predict: expected a draft that a text can tell something of. Add "
                "`drafter` ngram or a draft model, or measure these with sps bench"
            )
        if path is None:
            pairs, file = self._pairs(traces), self.folder / COSTS
            drafts = {Drafting.of(cell) for cell, _ in pairs}
            sources = pairs, self._text(samples, pairs[0][1])
            how: dict[str, Any] = {"contexts": contexts_of(traces)}
            how |= {"seconds": self.planning.cost_seconds, "watch": partial(self._show, "costs")}
            setting = setting_of([(self._plain, pairs[0][1]), *pairs])
            costs = costs_of_plan(file, setting, drafts, partial(measure, *sources, **how))
            batches = costs.batches
            if sizes and not (
                batches and batches.sizes[-1] >= sizes[-1] and drafts <= batches.rest.keys()
            ):
                most_k = max(cell.k or 0 for cell in self.cells)
                batches = measure_batches(*sources, sizes, most_k=most_k, **how)
                costs = replace(costs, batches=batches)
                replace_file(file, dumps(costs).encode("ascii"))
        else:
            costs = read_costs(path)
            if unpriced := [str(draft) for draft in traces.drafts if draft not in costs.arms]:
                raise DataError(
                    f"no costs of {', '.join(unpriced)} ({path}): expected those of every draft. "
                    f"It has {', '.join(map(str, costs.arms))}. Measure them: leave `costs` out"
                )
            if sizes:
                batch_costs_of(sizes, costs)
        return costs.scaled(**self.planning.factors)

    def _pairs(self, traces: Traces) -> list[tuple[Cell, Loaded]]:
        """Return the first cell for each traced draft and rule, with its loaded models."""
        traced_cells = (cell for cell in self.cells if Drafting.of(cell) in traces.drafts)
        groups = group_by(traced_cells, lambda cell: Method.of(cell).group).values()
        return [(cells[0], self._models(cells[0])) for cells in groups]

    def _text(self, samples: Sequence[Sample], models: Loaded) -> list[int]:
        """Return the tokens of the prompts in order, concatenated, at most `LONGEST`."""
        tokens = (token for s in samples for token in prompt_ids(models, self._plain, s))
        return [*islice(tokens, LONGEST)]

    def _best(self, forecasts: Forecasts) -> list[Cell]:
        """Return cells for real rounds: the best K of `confirm` predicted methods, and others.

        These are up to `MOST_UNPREDICTED` methods without a prediction, at the K nearest `USUAL`; a
        note names further ones. None are returned where the plan is to be `unmeasured`.
        """
        if self.planning.unmeasured:
            return []
        cells = {Method.of(cell): cell for cell in self.cells}
        best = [cells[f.method] for f in forecasts.by_method[: self.planning.confirm]]
        predicted = {f.method.at_any_k for f in forecasts.all}
        unpredicted: dict[Method, Cell] = {}
        for cell in sorted(self.cells, key=lambda cell: abs((cell.k or USUAL) - USUAL)):
            if (method := Method.of(cell).at_any_k) not in predicted:
                unpredicted.setdefault(method, cell)
        for method in list(unpredicted)[MOST_UNPREDICTED:]:
            log.info(f"note: {method} is neither predicted nor measured: sps bench measures it")
        return best + list(unpredicted.values())[:MOST_UNPREDICTED]

    def _real_rounds(
        self, best: Sequence[Cell], held_back: Sequence[Sample], traces: Traces
    ) -> None:
        """Run `best` and ArS on the held-back prompts, and save the run's name in the record.

        Prompts that have a trace are left out, unless all have one. Without cells or prompts
        nothing runs, and the name is None.
        """
        if not best or not held_back:
            self._note(confirm=None)
            return
        name = CONFIRM + short_hash({"cells": sorted(cell.id for cell in best)}, 8)
        self._note(confirm=name, finished=self._record.finished and self._record.confirm == name)
        traced = {sample for _, sample, _ in traces.texts}
        fresh = [prompt for prompt in held_back if prompt.id not in traced]
        self._run(name, fresh or held_back, HELD_BACK, [self._plain, *best], best)


def contexts_of(traces: Traces) -> list[int]:
    """Return the shortest prompt and the longest text, in tokens; one value where both are near."""
    low = min(text.prompt_tokens for text in traces.texts.values())
    high = max(text.prompt_tokens + len(text.q) for text in traces.texts.values())
    return [low, high] if high - low > APART else [(low + high) // 2]
