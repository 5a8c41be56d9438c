"""A hand that generates: it keeps its models loaded, and warms each cell up once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spsbench.benchmark.asking import Answers
from spsbench.benchmark.jobs import Job, make
from spsbench.benchmark.models import Models, folders_for
from spsbench.distributed.greeting import greeting
from spsbench.distributed.protocol import Hello, Work
from spsbench.distributed.shelves import models_of
from spsbench.distributed.units import Ask, Unit
from spsbench.models.shelf import Choices
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access
from spsbench.settings.records import Record


@dataclass(frozen=True, kw_only=True)
class Generating:
    """Everything that a worker must know.

    Args:
        cells: by id.
        threads: of the processor; None = torch's choice.
        warmup: generations of each cell that are made before one is recorded.
        beside: workers on one machine.
        choices: what engines have chosen in this run.
    """

    cells: Mapping[str, Cell]
    access: Access
    threads: int | None
    warmup: int
    beside: int = 1
    choices: Choices = field(default_factory=dict)

    def hello(self) -> Hello:
        """Check what is here, before any model is loaded.

        Raises:
            SpsError: a model cannot be had here.
        """
        return greeting(
            folders_for(self.cells.values(), self.access),
            threads=self.threads,
            beside=self.beside,
            device=next((cell.models.target.device for cell in self.cells.values()), "cpu"),
        )

    def work(self, units: Sequence[Unit]) -> Work:
        """The records of each unit."""
        before = dict(self._models.shelf.choices)
        made = [self._made(unit) for unit in units]
        chosen = dict(self._models.shelf.choices)
        return Work(made, chosen if chosen != before else None)

    def _made(self, unit: Unit) -> list[Record]:
        answers = Answers(unit.turns, unit.said)
        found = []
        for ask in unit.asks:
            self._warm(ask, answers)
            record = self._record(ask, answers)
            answers.add(record)
            found.append(record)
        return found

    def _warm(self, ask: Ask, answers: Answers) -> None:
        if ask.cell in self._state.warm:
            return
        for _ in range(self.warmup):
            make(self._job(ask), self._models(self.cells[ask.cell]), first=True, answers=answers)
        self._state.warm.add(ask.cell)

    def _record(self, ask: Ask, answers: Answers) -> Record:
        models = self._models(self.cells[ask.cell])
        first = not self._state.begun and not self.warmup
        self._state.begun = True
        return make(self._job(ask), models, first=first, answers=answers)

    def _job(self, ask: Ask) -> Job:
        return Job(self.cells[ask.cell], ask.sample, ask.repeat)

    @cached_property
    def _models(self) -> Models:
        return models_of(self.access, self.threads, self.choices)

    @cached_property
    def _state(self) -> "State":
        return State()


@dataclass
class State:
    """What changes in a hand."""

    warm: set[str] = field(default_factory=set)  # cells
    begun: bool = False
