"""The traces of a run by workers: a unit is one text, with all drafts along it.

The driver loads no model, so the first results say which drafts can be traced: until then it
hands out too many texts rather than too few.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.benchmark.conduct import Bulk
from spsbench.benchmark.models import folders_for
from spsbench.benchmark.trace_draft import readers
from spsbench.benchmark.trace_run import (
    Fit,
    OnProgress,
    Traced,
    Tracing,
    Untraced,
    by_name,
    head_of,
    keep,
    plains,
    tell,
    untraced,
)
from spsbench.benchmark.worker_models import ModelWork, keep_choices
from spsbench.methods.resolve import plan_of
from spsbench.models.cache import Choices
from spsbench.settings.cell import Cell
from spsbench.settings.execution import Workers
from spsbench.settings.models import ModelSpec
from spsbench.settings.task import Sample
from spsbench.store.records import records
from spsbench.store.traces import TraceWriter, traces_path
from spsbench.workers.environment import environment
from spsbench.workers.map_units import check_complete, map_units

log = logging.getLogger(__name__)


def trace_units(workers: Workers, bulk: Bulk, on_progress: OnProgress) -> None:
    """Have the texts of a run traced, and write what is found.

    Raises:
        UnavailableError: no worker, or no way to reach one.
        MismatchError: a worker has another environment, or the traces there are of other texts.
        BrokenOffError: a text that no worker could trace; the others are.
    """
    with ExitStack() as opened:
        driver = Driver(bulk, on_progress, opened)
        if not driver.total:
            return
        work = Traces(
            groups=tuple(group._replace(samples=()) for group in driver.groups),
            access=bulk.access,
            choices=dict(bulk.model_cache.choices),
            clock=bulk.model_cache.clock,
            expected=environment(driver.folders),
        )
        log.info(f"{driver.total} texts to trace on {workers.on}")
        on_progress(0, driver.total)
        map_units(
            workers,
            work,
            driver.units(),
            threads=bulk.access.threads,
            device=driver.groups[0].plain.models.target.device,
            take=driver.take,
            give_up=driver.give_up,
            stop=bulk.stop,
        )
        driver.finish()


class TraceGroup(NamedTuple):
    """The texts of one ArS cell, and the cells that are traced along them."""

    plain: Cell
    traced: tuple[Cell, ...]
    samples: Sequence[Sample]


class Unit(NamedTuple):
    """A text of a group, by the number of the group."""

    group: int
    text: Untraced


class Found(NamedTuple):
    """The result of a unit: traces, and what the worker knows by then of drafts and engines."""

    traced: Traced
    fits: Mapping[str, Fit]  # draft -> what can be traced of it
    choices: Choices


@dataclass(frozen=True, kw_only=True)
class Traces(ModelWork):
    """The traces of texts, by a worker that keeps what it found out of each draft."""

    groups: tuple[TraceGroup, ...]

    def __call__(self, unit: Unit) -> Found:
        """Trace along a text."""
        if unit.group not in self._tracings:
            group = self.groups[unit.group]
            made = Tracing(group.plain, group.traced, self.models, self.folders)
            self._tracings[unit.group] = made
        tracing = self._tracings[unit.group]
        return Found(tracing(unit.text), tracing.fits, dict(self.models.model_cache.choices))

    @cached_property
    def folders(self) -> Mapping[ModelSpec, Path]:
        """Return the folders of the cells' models."""
        return folders_for(cells_of(self.groups), self.access)

    @cached_property
    def _tracings(self) -> dict[int, Tracing]:
        return {}


class Driver:
    """Knows which texts miss a trace, and writes traces."""

    def __init__(self, bulk: Bulk, on_progress: OnProgress, opened: ExitStack) -> None:
        self._bulk, self._on_progress = bulk, on_progress
        self._missing = self._done = 0
        self.groups = tuple(
            TraceGroup(plain, part.traced, samples)
            for part, samples in zip(bulk.experiment.parts, bulk.samples, strict=True)
            for plain in (plains(part) if part.traced else ())
        )
        self.folders = folders_for(cells_of(self.groups), bulk.access)
        self._fits = [
            {name: foreseen(own) for name, own in by_name(group.plain, group.traced).items()}
            for group in self.groups
        ]
        writer = bulk.writer
        self._writers = [
            opened.enter_context(
                TraceWriter(
                    traces_path(writer.folder, group.plain.id, writer.shard),
                    head_of(group.plain, self.folders),
                )
            )
            for group in self.groups
        ]
        self.total = sum(1 for _ in self.units())

    def units(self) -> Iterator[Unit]:
        """Yield the texts that miss something, as far as it is known by then."""
        made: Callable[[], Any] = partial(records, self._bulk.writer.folder)
        for number, group in enumerate(self.groups):
            fits, writer = self._fits[number], self._writers[number]
            for text in untraced(group.plain, group.samples, made, fits, writer):
                yield Unit(number, text)

    def take(self, unit: Unit, found: Found) -> None:
        """Write traces, and keep what the worker knows."""
        self._fits[unit.group] |= found.fits
        keep_choices(self._bulk.model_cache, found.choices)
        keep(self._writers[unit.group], found.traced)
        self._done += 1
        self._on_progress(self._done, max(self._done, self.total))

    def give_up(self, unit: Unit, error: str) -> None:
        """Count a text that no worker could trace."""
        self._missing += 1
        log.info(f"gave up the trace of {unit.text.key[1]}: {error}")

    def finish(self) -> None:
        """Say which drafts cannot be traced, and raise if a trace is missing."""
        for fits in self._fits:
            tell(fits)
        self._on_progress(self._done, max(self._done, self.total))
        check_complete(self._missing, "texts without a trace")


def cells_of(groups: Sequence[TraceGroup]) -> list[Cell]:
    """Return all cells of some groups."""
    return [cell for group in groups for cell in (group.plain, *group.traced)]


def foreseen(cells: Sequence[Any]) -> Fit:
    """Return what can be traced of a draft, as far as it is known without a model."""
    tree = plan_of(cells[0].method.drafter).tree
    return Fit("its drafts branch" if tree else None, frozenset(readers(cells)))
