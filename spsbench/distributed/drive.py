"""The driver of a run: hands its generations to workers, and writes what they make."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from spsbench.benchmark.conduct import Bulk
from spsbench.benchmark.jobs import EMPTY, jobs, key
from spsbench.benchmark.models import folders_for
from spsbench.benchmark.traced import Told
from spsbench.distributed.crew import workers_of
from spsbench.distributed.environment import environment
from spsbench.distributed.generations import Generating
from spsbench.distributed.pace import ClusterPace
from spsbench.distributed.protocol import Hello
from spsbench.distributed.same import Same
from spsbench.distributed.scheduler import Group, Ledger, Scheduler
from spsbench.distributed.shelves import take_over
from spsbench.distributed.trail import trace_on
from spsbench.distributed.units import Unit, answers, groups_of
from spsbench.models.shelf import Choices
from spsbench.settings.execution import Crew
from spsbench.settings.records import Record
from spsbench.store.machines import machine_name
from spsbench.store.records import records

log = logging.getLogger(__name__)


class Drive:
    """`runs.conduct.Hands`: one driver writes, whoever works.

    Args:
        crew: who works.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew = crew

    def trace(self, bulk: Bulk, told: Told) -> None:
        """Trace and write what is missing.

        Raises:
            BrokenOffError: a text that no worker could trace; the others are.
            SpsError: as `make`.
        """
        trace_on(self.crew, bulk, told)

    def make(self, bulk: Bulk) -> None:
        """Make and write what is missing.

        Raises:
            UnavailableError: nobody to work, or no way to reach them.
            MismatchError: a worker has another environment.
            SpsError: what a worker refuses.
        """
        groups = list(groups_in(bulk))
        missing = sum(group.total for group in groups)
        book = Book(bulk)
        device = next(iter(bulk.experiment.cells)).models.target.device
        opener = partial(
            Generating,
            cells={cell.id: cell for cell in bulk.experiment.cells},
            access=bulk.access,
            warmup=bulk.experiment.warmup,
            choices=dict(bulk.shelf.choices),
        )
        with workers_of(self.crew, opener, bulk.access.threads, device) as workers:
            scheduler = Scheduler(workers, groups, book.ledger)
            book.pace.scheduler = scheduler
            log.info(f"{missing} units of work on {self.crew.on}")
            bulk.watch(book.pace)
            scheduler.run(bulk.stop)


def groups_in(bulk: Bulk) -> Iterable[Group]:
    """The units of all parts that miss something."""
    for part, samples in zip(bulk.experiment.parts, bulk.samples, strict=True):
        made = answers(samples, records(bulk.writer.folder))
        yield from groups_of(part, samples, bulk.experiment.seed, bulk.writer.wants, made)


class Book:
    """What the driver knows of its workers, and writes for them."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        cells = bulk.experiment.cells
        self._same = Same(lambda: environment(folders_for(cells, bulk.access)))
        self._machines: dict[str, str] = {}  # worker -> its machine's name
        self._noted: set[str] = set()  # machines in the manifest, of this start
        total = sum(
            bulk.writer.wants(key(job))
            for part, samples in zip(bulk.experiment.parts, bulk.samples, strict=True)
            for job in jobs(part, samples, bulk.experiment.seed)
        )
        self.pace = ClusterPace(total)

    @property
    def ledger(self) -> Ledger:
        """For the scheduler."""
        return Ledger(
            take=self.take,
            give_up=self.give_up,
            joined=self.joined,
            noted=self.noted,
            told=lambda: self._bulk.watch(self.pace),
            lost=self.lost,
        )

    def joined(self, worker: str, hello: Hello) -> None:
        """Check its environment, and note its machine before anything that it makes."""
        self._same.check(hello)
        name = machine_name(hello.provenance)
        if name not in self._noted:
            self._bulk.writer.join(name, hello.provenance)
            self._noted.add(name)
        self._machines[worker] = name

    def take(self, worker: str, unit: Unit, result: Iterable[Record]) -> None:
        """Write what was made; what is there already stays."""
        for record in result:
            if self._bulk.writer.wants(record.key):
                self._bulk.writer.append(record, self._machines[worker])
                self.pace.add(failed=record.error is not None)

    def give_up(self, unit: Unit, error: str) -> None:
        """Write that it failed, as a failure of each of its generations."""
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
            if self._bulk.writer.wants(ask.key):
                self._bulk.writer.append(failed)
                self.pace.add(failed=True)

    def noted(self, note: Choices) -> None:
        """Keep what engines chose: a resumed run keeps to it."""
        take_over(self._bulk.shelf, note)

    def lost(self, worker: str, reason: str) -> None:
        """Say it once."""
        self._machines.pop(worker, None)
        log.info(f"note: {worker} is lost ({reason}): what it was at is made again")
