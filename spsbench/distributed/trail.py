"""The driver of traces: hands texts of a run to workers, and writes what they found along them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from spsbench.benchmark.conduct import Bulk
from spsbench.benchmark.models import folders_for
from spsbench.benchmark.stops import readers
from spsbench.benchmark.traced import Fit, Told, Traced, by_name, keep, plains, tell, untraced
from spsbench.benchmark.traced_of import head_of
from spsbench.distributed.crew import workers_of
from spsbench.distributed.environment import environment
from spsbench.distributed.lacking import check_whole
from spsbench.distributed.protocol import Hello
from spsbench.distributed.same import Same
from spsbench.distributed.scheduler import Group, Ledger, Scheduler
from spsbench.distributed.shelves import take_over
from spsbench.distributed.tracing import Following, Found, TextUnit, Trail, cells_of
from spsbench.methods.resolve import plan_of
from spsbench.settings.execution import Crew
from spsbench.settings.task import Sample
from spsbench.store.records import records
from spsbench.store.traces import TraceWriter, traces_path

log = logging.getLogger(__name__)


def trace_on(crew: Crew, bulk: Bulk, told: Told) -> None:
    """Have the texts of a run traced, and write what is found.

    Raises:
        UnavailableError: nobody to work, or no way to reach them.
        MismatchError: a worker has another environment, or the traces there are of other texts.
        BrokenOffError: a text that no worker could trace; the others are.
    """
    with ExitStack() as opened:
        book = Book(bulk, told, opened)
        if not book.total:
            return
        opener = partial(
            Following, trails=book.trails, access=bulk.access, choices=dict(bulk.shelf.choices)
        )
        device = book.trails[0].plain.models.target.device
        threads = bulk.access.threads
        with workers_of(crew, opener, threads, device) as workers:
            log.info(f"{book.total} texts to trace on {crew.on}")
            told(0, book.total)
            Scheduler(workers, book.groups, book.ledger).run(bulk.stop)
        book.told()
        check_whole(book.lacking, "texts without a trace")


class Book:
    """What the driver knows of texts and drafts, and writes.

    No model is loaded here, so what can be traced of a draft the first workers tell: until then too
    much is handed out rather than too little.
    """

    def __init__(self, bulk: Bulk, told: Told, opened: ExitStack) -> None:
        self._bulk, self._told = bulk, told
        self._samples: list[Sequence[Sample]] = []
        self.lacking = self._done = 0
        trails = []
        for part, samples in zip(bulk.experiment.parts, bulk.samples, strict=True):
            for plain in plains(part) if part.traced else ():
                trails.append(Trail(plain, part.traced))
                self._samples.append(samples)
        self.trails = tuple(trails)
        cells = cells_of(self.trails)
        folders = folders_for(cells, bulk.access)
        self._same = Same(lambda: environment(folders))
        self._fits = [
            {name: foreseen(own) for name, own in by_name(*trail).items()} for trail in self.trails
        ]
        writer = bulk.writer
        self._writers = [
            opened.enter_context(
                TraceWriter(
                    traces_path(writer.folder, trail.plain.id, writer.shard),
                    head_of(trail.plain, folders),
                )
            )
            for trail in self.trails
        ]
        self._totals = [sum(1 for _ in self._units(n)) for n in range(len(self.trails))]
        self.total = sum(self._totals)

    @property
    def groups(self) -> list[Group]:
        """The texts of each ArS cell."""
        return [Group(total, self._units(n)) for n, total in enumerate(self._totals)]

    @property
    def ledger(self) -> Ledger:
        """For the scheduler."""
        return Ledger(
            take=self._take,
            give_up=self._give_up,
            joined=self._joined,
            noted=self._noted,
            lost=self._lost,
        )

    def told(self) -> None:
        """Say how far it is, and what cannot be traced."""
        for fits in self._fits:
            tell(fits)
        self._told(self._done, max(self._done, self.total))

    def _units(self, number: int) -> Iterator[TextUnit]:
        trail, writer = self.trails[number], self._writers[number]
        made: Callable[[], Any] = partial(records, self._bulk.writer.folder)
        given = trail.plain, self._samples[number], made, self._fits[number], writer
        return (TextUnit(number, text) for text in untraced(*given))

    def _take(self, worker: str, unit: TextUnit, found: Traced) -> None:
        keep(self._writers[unit.trail], found)
        self._done += 1
        self._told(self._done, max(self._done, self.total))

    def _give_up(self, unit: TextUnit, error: str) -> None:
        self.lacking += 1
        log.info(f"gave up the trace of {unit.text.key[1]}: {error}")

    def _joined(self, worker: str, hello: Hello) -> None:
        self._same.check(hello)

    def _noted(self, note: Found) -> None:
        for number, fits in note.fits.items():
            self._fits[number] |= fits
        take_over(self._bulk.shelf, note.choices)

    def _lost(self, worker: str, reason: str) -> None:
        log.info(f"note: {worker} is lost ({reason}): what it was at is traced again")


def foreseen(cells: Sequence[Any]) -> Fit:
    """What can be traced of a draft, as far as no model is needed to know it."""
    tree = plan_of(cells[0].method.drafter).tree
    return Fit("its drafts branch" if tree else None, frozenset(readers(cells)))
