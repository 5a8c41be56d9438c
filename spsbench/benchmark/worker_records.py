"""The records of a run by workers: `sps bench --on`.

A unit is what is generated of one prompt and repeat under all cells of one target, on one worker:
the cells are compared with each other, so they meet the same moment of the same machine. The turns
of a conversation are one unit.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.benchmark.conduct import Bulk
from spsbench.benchmark.estimate import rate
from spsbench.benchmark.jobs import EMPTY, Answers, Job, jobs, key, make, warm_up
from spsbench.benchmark.models import folders_for
from spsbench.benchmark.worker_models import ModelWork, keep_choices
from spsbench.hardware.files import clock
from spsbench.models.cache import Choices
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Workers
from spsbench.settings.experiment import Part
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample
from spsbench.store.provenance import machine_name
from spsbench.store.records import records
from spsbench.store.run_folder import TURN
from spsbench.workers.environment import environment, machine
from spsbench.workers.map_units import map_units

log = logging.getLogger(__name__)


class RunWorkers:
    """`benchmark.conduct.WorkerPool`: workers make records, the driver writes them."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def make(self, bulk: Bulk) -> None:
        """Have the missing records made, and write them.

        Raises:
            UnavailableError: no worker, or no way to reach one.
            MismatchError: a worker has another environment.
            SpsError: what a worker refuses.
        """
        cells = bulk.experiment.cells
        work = Generations(
            cells={cell.id: cell for cell in cells},
            access=bulk.access,
            warmup=bulk.experiment.warmup,
            choices=dict(bulk.model_cache.choices),
            clock=bulk.model_cache.clock,
            expected=environment(folders_for(cells, bulk.access)),
        )
        missing = sum(1 for _ in missing_units(bulk))
        log.info(f"{missing} units of work on {self.workers.on}")
        driver = Driver(bulk)
        bulk.watch(driver.progress)
        map_units(
            self.workers,
            work,
            missing_units(bulk),
            threads=bulk.access.threads,
            device=next(iter(cells)).target.device,
            take=driver.take,
            give_up=driver.give_up,
            stop=bulk.stop,
        )


class Ask(NamedTuple):
    """One generation to be made."""

    cell: str
    sample: Sample
    repeat: int

    @property
    def key(self) -> Key:
        """Return the key of its record."""
        return self.cell, self.sample.id, self.repeat


class Unit(NamedTuple):
    """Generations that are made on one worker, one after the other."""

    asks: tuple[Ask, ...]
    turns: tuple[Sample, ...] = ()  # of a conversation: all of it
    said: tuple[Record, ...] = ()  # answers in it that there are already; their texts alone


class Made(NamedTuple):
    """The result of a unit."""

    records: list[Record]
    machine: Mapping[str, Any]  # that made them
    choices: Choices  # of its engines


IsMissing = Callable[[Key], bool]


def missing_units(bulk: Bulk) -> Iterator[Unit]:
    """Yield the units of all parts that miss something, those of one target after the other."""
    for part, samples in zip(bulk.experiment.parts, bulk.samples, strict=True):
        answered = answers(samples, records(bulk.writer.folder))
        yield from units_of(part, samples, bulk.experiment.seed, bulk.writer.is_missing, answered)


def units_of(
    part: Part,
    samples: Sequence[Sample],
    seed: int,
    is_missing: IsMissing,
    answered: Mapping[Key, Record],
) -> Iterator[Unit]:
    """Yield the units of a part that miss something: a worker loads each target once."""
    for target in dict.fromkeys(cell.target for cell in part.cells):
        yield from _of_target(part, samples, seed, is_missing, answered, target)


def _of_target(
    part: Part,
    samples: Sequence[Sample],
    seed: int,
    is_missing: IsMissing,
    answered: Mapping[Key, Record],
    target: ModelSpec,
) -> Iterator[Unit]:
    for _, together in groupby(samples, lambda sample: sample.id.partition(TURN)[0]):
        turns = tuple(together)
        for _, of_repeat in groupby(_by_repeat(part, turns, seed), lambda job: job.repeat):
            every = [job for job in of_repeat if job.cell.target == target]
            asks = tuple(
                Ask(job.cell.id, job.sample, job.repeat) for job in every if is_missing(key(job))
            )
            if asks and len(turns) > 1:
                answers = tuple(answered[key(job)] for job in every if key(job) in answered)
                yield Unit(asks, turns, answers)
            elif asks:
                yield Unit(asks)


def _by_repeat(part: Part, turns: Sequence[Sample], seed: int) -> Iterable[Job]:
    """Return the jobs of a conversation: its turns in order, for one repeat after the other."""
    ordered = jobs(part, turns, seed)
    return ordered if len(turns) == 1 else sorted(ordered, key=lambda job: job.repeat)


def answers(samples: Iterable[Sample], records: Iterable[Record]) -> dict[Key, Record]:
    """Return the answers that later turns go on from, without what was measured."""
    awaited = {sample.after for sample in samples if sample.after is not None}
    return {
        record.key: replace(record, tokens=[], rounds=[], laws=None)
        for record in (records if awaited else ())
        if record.sample in awaited and record.error is None
    }


@dataclass(frozen=True, kw_only=True)
class Generations(ModelWork):
    """The records of units, by a worker that warms each cell up once.

    Args:
        cells: by id.
        warmup: generations of each cell that are made before one is recorded.
    """

    cells: Mapping[str, Cell]
    warmup: int
    _warm: set[str] = field(default_factory=set, init=False)  # cells

    @property
    def folders(self) -> Mapping[ModelSpec, Path]:
        """Return the folders of the cells' models."""
        return folders_for(self.cells.values(), self.access)

    def __call__(self, unit: Unit) -> Made:
        """Make the records of a unit."""
        answers, made_records = Answers(unit.turns, unit.said), []
        for ask in unit.asks:
            cell = self.cells[ask.cell]
            job, models = Job(cell, ask.sample, ask.repeat), self.models(cell)
            first = not self._warm and not self.warmup  # of this process
            if ask.cell not in self._warm:
                for number in range(self.warmup):
                    warm_up(job, models, answers=answers, depths=number == 0)
                self._warm.add(ask.cell)
            record = make(job, models, first=first, answers=answers, compare=self.models)
            answers.add(record)
            made_records.append(record)
        return Made(made_records, self._machine, dict(self.models.model_cache.choices))

    @cached_property
    def _machine(self) -> Mapping[str, Any]:
        cell = next(iter(self.cells.values()), None)
        return machine(self.beside, cell.target.device if cell else "cpu")


class Driver:
    """Writes what workers make."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._noted: set[str] = set()  # machines in the manifest, of this start
        parts = zip(bulk.experiment.parts, bulk.samples, strict=True)
        planned = (
            job for part, samples in parts for job in jobs(part, samples, bulk.experiment.seed)
        )
        self.progress = Progress(sum(bulk.writer.is_missing(key(job)) for job in planned))

    def take(self, unit: Unit, made: Made) -> None:
        """Write records, behind a note of their machine; a record that is there already stays."""
        keep_choices(self._bulk.model_cache, made.choices)
        name = machine_name(made.machine)
        if name not in self._noted:
            self._bulk.writer.join(name, made.machine)
            self._noted.add(name)
        for record in made.records:
            if self._bulk.writer.is_missing(record.key):
                self._bulk.writer.append(record, name)
                self.progress.add(failed=record.error is not None)
        self._bulk.watch(self.progress)

    def give_up(self, unit: Unit, error: str) -> None:
        """Write that a unit failed, as a failure of each of its generations."""
        log.info(f"gave up {unit.asks[0].sample.id}: {error}")
        for ask in unit.asks:
            cell, sample, repeat = ask.key
            failed = replace(
                EMPTY,
                cell=cell,
                sample=sample,
                repeat=repeat,
                error=error,
                prompt_cut=ask.sample.cut,
                group=ask.sample.group,
            )
            if self._bulk.writer.is_missing(ask.key):
                self._bulk.writer.append(failed)
                self.progress.add(failed=True)


class Progress:
    """Progress of a run on workers, in samples.

    Args:
        total: samples to be made.
        now: seconds.
    """

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._now, self._began = now, now()
        self._first: float | None = None  # when the first came: models were loaded by then

    def add(self, *, failed: bool) -> None:
        """Count one."""
        if self._first is None:
            self._first = self._now()
        self.done += 1
        self.failed += failed

    def __str__(self) -> str:
        """Return `312/800, 3.1 samples/s, 0:04:10 to go`."""
        parts = [f"{self.done}/{self.total}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        passed = self._now() - (self._began if self._first is None else self._first)
        if self.done > 1 and passed > 0:
            speed = (self.done - 1) / passed
            parts.append(f"{rate(speed)} samples/s")
            parts.append(f"{clock((self.total - self.done) / speed)} to go")
        return ", ".join(parts)
