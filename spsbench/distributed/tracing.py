"""A hand that traces drafts along finished texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from spsbench.benchmark.models import Models, folders_for
from spsbench.benchmark.traced import Fit, Traced, Tracing, Untraced
from spsbench.distributed.greeting import greeting
from spsbench.distributed.protocol import Hello, Work
from spsbench.distributed.shelves import models_of
from spsbench.models.shelf import Choices
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Access


class Trail(NamedTuple):
    """Texts of one ArS cell, and what may be traced along them."""

    plain: Cell
    traced: tuple[Cell, ...]


class TextUnit(NamedTuple):
    """A text for a worker."""

    trail: int
    text: Untraced


class Found(NamedTuple):
    """What a worker found out beside the traces."""

    fits: Mapping[int, Mapping[str, Fit]]  # trail -> draft -> what can be traced of it
    choices: Choices


@dataclass(frozen=True, kw_only=True)
class Following:
    """It keeps its models, and what it found out of each draft.

    Args:
        threads: of the processor; None = torch's choice.
        beside: workers on one machine.
        choices: what engines have chosen in this run.
    """

    trails: tuple[Trail, ...]
    access: Access
    threads: int | None
    beside: int = 1
    choices: Choices = field(default_factory=dict)

    def hello(self) -> Hello:
        """Check what is here, before any model is loaded.

        Raises:
            SpsError: a model cannot be had here.
        """
        return greeting(
            self._folders,
            threads=self.threads,
            beside=self.beside,
            device=self.trails[0].plain.models.target.device,
        )

    def work(self, units: Sequence[TextUnit]) -> Work:
        """The traces along each text."""
        found: list[Traced] = [self._tracing(unit.trail)(unit.text) for unit in units]
        fits = {number: tracing.fits for number, tracing in self._kept.items()}
        return Work(found, Found(fits, dict(self._models.shelf.choices)))

    def _tracing(self, number: int) -> Tracing:
        if number not in self._kept:
            plain, traced = self.trails[number]
            self._kept[number] = Tracing(plain, traced, self._models, self._folders)
        return self._kept[number]

    @cached_property
    def _folders(self) -> Any:
        return folders_for(cells_of(self.trails), self.access)

    @cached_property
    def _models(self) -> Models:
        return models_of(self.access, self.threads, self.choices)

    @cached_property
    def _kept(self) -> dict[int, Tracing]:
        return {}


def cells_of(trails: Sequence[Trail]) -> list[Cell]:
    """All cells of some trails."""
    return [cell for trail in trails for cell in (trail.plain, *trail.traced)]
