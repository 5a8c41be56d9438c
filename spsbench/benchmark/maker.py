"""The maker of records: each cell is warmed up once, then the generations of a unit are made.

This process is a worker like any other: `Maker` makes the records of a unit, wherever it runs, and
`RecordMaking` hands units out and writes what comes.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from spsbench.benchmark.estimate import RunProgress
from spsbench.benchmark.jobs import (
    Answers,
    Job,
    Unit,
    groups,
    job_prompt,
    part_jobs,
    prompt_ids,
    run_job,
    units_of,
)
from spsbench.benchmark.models import Models, folders_for
from spsbench.errors import first_line
from spsbench.generation import WARM_UP_TOKENS, check_cache, warm_depths
from spsbench.loop.batch import Batch
from spsbench.loop.request_batch import RequestBatch
from spsbench.methods.build import forget_memories
from spsbench.metrics.sums import group_by
from spsbench.models.cache import Choices, Loaded, ModelCache
from spsbench.parallel.process_group import on_rank_0
from spsbench.serving.acceptance import Acceptance, contradiction
from spsbench.settings.cell import Cell
from spsbench.settings.execution import HERE, Access, Workers
from spsbench.settings.experiment import Experiment
from spsbench.settings.records import Record
from spsbench.settings.task import Sample
from spsbench.store.records import records
from spsbench.store.run import RunWriter
from spsbench.store.starts import Provenance
from spsbench.workers.environment import check_same_environment, describe_worker, worker_provenance
from spsbench.workers.map_units import map_units
from spsbench.workers.work import Work

log = logging.getLogger(__name__)


class UnitRecords(NamedTuple):
    """The result of a unit on a worker."""

    records: list[Record]
    machine: Provenance  # that made them
    choices: Choices  # made by its engines


@dataclass(frozen=True, kw_only=True)
class Maker(Work):
    """Makes the records of units with models that stay loaded, here or in a worker's process.

    `counted` takes a cell's id and what an engine counted over several of its texts, and over none
    alone.
    """

    cells: Sequence[Cell]  # those of all units
    access: Access
    warmup: int  # generations of a cell before one is recorded; 0: flag this process's first record
    expected: Mapping[str, Any] = field(default_factory=dict)  # the driver's environment, required
    choices: Choices = field(default_factory=dict)  # what engines have chosen in this run
    clock: datetime | None = None  # the time given to chat templates
    models: Callable[[Cell], Loaded] | None = None  # those of a cell; None: they are loaded here
    stop: Callable[[], bool] = lambda: False  # polled before each generation; True ends the unit
    counted: Callable[[str, Mapping[str, float]], None] | None = None
    _warm: set[str] = field(default_factory=set)  # cells

    def prepare(self) -> None:
        """Set a worker's torch threads, forget what drafters learnt, and check its machine.

        Raises MismatchError for another environment than the driver's, and SpsError where a model's
        file cannot be read.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        forget_memories()
        check_same_environment(self.expected, describe_worker(folders_for(self.cells, self.access)))

    def __call__(self, unit: Unit) -> UnitRecords:
        """Make the records of a unit on a worker."""
        new = list(self.records(unit))
        return UnitRecords(new, self._machine, dict(self._own_models.model_cache.choices))

    def records(self, unit: Unit) -> Iterator[Record]:
        """Yield a unit's records until `stop()`; OutOfMemoryError: a batch does not fit.

        Without a warm-up the first record of this process is flagged `first`.
        """
        answers = Answers(unit.turns, unit.answers)
        check_batch_memory(unit.jobs, self._load)
        for group in groups(unit.jobs):
            is_first = not self._warm and not self.warmup
            self._warm_up(group, answers)
            for record in self._generate(group, answers):
                answers.add(record)
                yield replace(record, flags=("first", *record.flags)) if is_first else record
                is_first = False
            if self.stop():
                return

    @cached_property
    def _own_models(self) -> Models:
        access = replace(self.access, threads=self.threads)
        return Models(ModelCache(access, choices=dict(self.choices), clock=self.clock))

    def _load(self, cell: Cell) -> Loaded:
        return (self.models or self._own_models)(cell)

    @cached_property
    def _machine(self) -> Provenance:
        return worker_provenance([self.cells[0].target.device], self.beside)

    def _warm_up(self, group: Sequence[Job], answers: Answers) -> None:
        """Make, once a cell, texts that are not recorded: `warmup` times the group's first job.

        In a cell of batches, a batch of short texts follows each. If the first job succeeds, rounds
        of each depth follow: see `warm_depths`. For an engine elsewhere prompts are numbered. After
        `stop()` nothing is made.
        """
        job, size = group[0], group[0].cell.batch
        if job.cell.id in self._warm:
            return
        self._warm.add(job.cell.id)
        for number in range(self.warmup):
            if self.stop():
                return
            models = self._load(job.cell)
            if job.cell.elsewhere:  # a server may draft from its answer to this very prompt
                prompt = f"({number + 1}) {group[0].sample.prompt}"
                job = job._replace(sample=replace(group[0].sample, prompt=prompt))
            record = run_job(job, models, answers=answers)
            if number == 0 and record.error is None:
                cell = job.cell.but(json_schema=job.sample.json_schema or job.cell.json_schema)
                warm_depths(cell, models, job_prompt(models, cell, job.sample))
            if size > 1:
                batch = make_batch(job.cell)
                few = [j._replace(cell=j.cell.but(max_new_tokens=WARM_UP_TOKENS)) for j in group]
                for _ in batch.run(
                    partial(run_job, job, models, batch=batch) for job in few[:size]
                ):
                    pass

    def _generate(self, group: Sequence[Job], answers: Answers) -> Iterator[Record]:
        """Yield a group's records, alone or as rows of a batch; after `stop()` none begins.

        A row has its share of the batch's seconds, and none of the processor's. What a server
        counted over rows without a failure is passed to `counted`.
        """
        cell = group[0].cell
        make_record = partial(run_job, models=self._load(cell), answers=answers, compare=self._load)
        if cell.batch == 1:
            yield from (make_record(job) for job in group if not self.stop())
            return
        batch = make_batch(cell)
        calls = (partial(make_record, job, batch=batch) for job in group)
        tokens, failed = list[int](), 0
        for row in batch.run(takewhile(lambda call: not self.stop(), calls)):
            record = replace(
                row.result,
                # processor seconds count all rows of the batch
                rounds=[r._replace(processor_seconds=None) for r in row.result.rounds],
                machine_seconds=row.share,
                empty_seconds=max(0.0, row.share - row.seconds / cell.batch),
            )
            tokens.append(sum(r.emitted for r in record.rounds))
            failed += record.error is not None
            yield record
        if isinstance(batch, RequestBatch) and not failed:
            self._count(cell.id, batch.summary, tokens)

    def _count(self, cell: str, counts: Acceptance | None, tokens: Sequence[int]) -> None:
        """Pass a server's counts, if any, by name to `counted`, unless `tokens` contradict them."""
        if counts is None or self.counted is None or contradiction(counts, sum(tokens)):
            return
        sums = {"texts": len(tokens), "rounds": counts.rounds, "accepted": counts.accepted}
        drafted = {} if counts.drafted is None else {"drafted": counts.drafted}
        self.counted(cell, sums | drafted)


def make_batch(cell: Cell) -> Batch:
    """Return a batch whose rows share passes; of a cell elsewhere, requests to a server."""
    kind = RequestBatch if cell.elsewhere else Batch
    return kind(cell.batch, continuous=cell.continuous)


def check_batch_memory(missing: Sequence[Job], models: Callable[[Cell], Loaded]) -> None:
    """Raise OutOfMemoryError for batches whose keys and values do not fit, before any begins.

    The message names the bytes of the batch, and how many rows fit. `models` loads those of cells
    in batches, none elsewhere, and what a batch that fits needs is logged.
    """
    batched = (job for job in missing if job.cell.batch > 1 and not job.cell.elsewhere)
    for cell, group in group_by(batched, lambda job: job.cell).items():
        loaded = models(cell)
        lengths = [len(prompt_ids(loaded, cell, job.sample)) for job in group]
        check_cache(cell, loaded, lengths, cell.batch)


@dataclass(kw_only=True)
class RecordMaking:
    """The missing records of a run, made here or by workers, and written as they come."""

    experiment: Experiment
    samples: Sequence[Sequence[Sample]]  # by part, cut to the contexts of the models
    writer: RunWriter  # says which records are missing
    watch: Callable[[Any], None]
    stop: Callable[[], bool]  # polled between generations; True ends the making

    def __post_init__(self) -> None:
        parts, seed = zip(self.experiment.parts, self.samples, strict=True), self.experiment.seed
        self._cells = {cell.id: cell for cell in self.experiment.cells}
        self._missing = [
            [job for job in part_jobs(part, of_part, seed) if self.writer.is_missing(job.key)]
            for part, of_part in parts
        ]
        self.total = sum(map(len, self._missing))
        self._progress = RunProgress(self.total, self.experiment.cells)
        self._noted: set[str] = set()  # machines of this start in the log

    def _write(self, record: Record, machine_of_record: str | None = None) -> None:
        """Write a record, count it and show the progress, unless it is there already."""
        if self.writer.is_missing(record.key):
            self.writer.append(record, machine_of_record)
            self._progress.add(self._cells[record.cell], record)
            self.watch(self._progress)

    def make(self, workers: Workers, access: Access, models: Models) -> None:
        """Make the records with `models` here or, unless `workers` are HERE, on those with theirs.

        Raises UnavailableError without a worker or a way to reach one, MismatchError where a worker
        has another environment, and SpsError for what a worker refuses.
        """
        self.watch(self._progress)
        maker = Maker(cells=self.experiment.cells, access=access, warmup=self.experiment.warmup)
        if workers.kind == HERE:
            self._make_here(replace(maker, models=models, stop=self.stop, counted=self._count))
        elif self.total:
            self._make_on(workers, maker, models.model_cache)

    def _count(self, cell: str, counts: Mapping[str, float]) -> None:
        self.writer.note(counters={cell: counts})

    def _make_here(self, maker: Maker) -> None:
        """Make and write the missing records here, until `stop()`; does not `prepare` the maker."""
        for jobs_of_part, samples in zip(self._missing, self.samples, strict=True):
            in_turns = any(sample.after for sample in samples)
            earlier = on_rank_0(lambda: list(records(self.writer.folder))) if in_turns else ()
            for record in maker.records(Unit(jobs_of_part, samples, earlier)):
                self._write(record)
            if self.stop():
                return

    def _make_on(self, workers: Workers, maker: Maker, model_cache: ModelCache) -> None:
        """Make the missing records on `workers`, unit by unit; `stop()` ends it.

        Records of a unit that is given up hold its error. The first records of a machine are
        preceded by its provenance; what its engines chose first is kept in the model cache and the
        run.
        """
        maker = replace(
            maker,
            expected=describe_worker(folders_for(maker.cells, maker.access)),
            choices=dict(model_cache.choices),
            clock=model_cache.clock,
        )

        def take(unit: Unit, made: UnitRecords | Exception) -> None:
            """Write a unit's records, new choices and machine; of an exception, records with it."""
            if isinstance(made, Exception):
                error = f"{type(made).__name__}: {first_line(made)}"
                log.info(f"gave up {unit.jobs[0].sample.id}: {error}")
                for job in unit.jobs:
                    self._write(job.record(error=error))
                return
            new = {n: made.choices[n] for n in made.choices if n not in model_cache.choices}
            if new:  # what engines of workers have chosen first: a resumed run keeps to it
                model_cache.choices.update(new)
                model_cache.chosen()
            name = made.machine.machine
            if name not in self._noted:
                self.writer.start(made.machine, name)
                self._noted.add(name)
            for record in made.records:
                self._write(record, name)

        units = [
            unit
            for missing, samples in zip(self._missing, self.samples, strict=True)
            for unit in units_of(missing, samples, records(self.writer.folder))
        ]
        log.info(f"{len(units)} units of work on {workers.on}")
        threads, device = maker.access.threads, maker.cells[0].target.device
        map_units(workers, maker, units, take, threads=threads, device=device, stop=self.stop)
