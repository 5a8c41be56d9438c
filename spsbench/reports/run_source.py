"""A run as its tables see it: what was asked, the records of each setting, and their summaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, UsageError
from spsbench.metrics.parity import Combine, average
from spsbench.metrics.summaries import Summary, summaries
from spsbench.metrics.terms import Dialect
from spsbench.plugins import plug_in
from spsbench.reports.reporter import Title
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key, Record, Score
from spsbench.store.manifest import Manifest
from spsbench.store.provenance import Setting, settings
from spsbench.store.records import segmented
from spsbench.tasks.scores import read_scores


class Source(NamedTuple):
    """What every table of a run is made of."""

    folder: Path
    manifest: Manifest
    cells: list[Cell]
    scores: list[Score]
    margins: Mapping[str, float]
    by_group: bool
    dialect: Dialect | None
    pool: bool = False  # times of unlike machines too
    paper: bool = False  # the paper's rows, where the run did not ask for them itself

    @classmethod
    def open(
        cls,
        folder: Path,
        margins: Mapping[str, float],
        by_group: bool = False,
        dialect: Dialect | None = None,
    ) -> "Source":
        """Read what stands beside the records.

        Raises:
            SpsError: no run, or one that is damaged.
        """
        manifest = Manifest.load(folder)
        cells = list(manifest.configurations(folder).values())
        scores = list(read_scores(folder))
        return cls(folder, manifest, cells, scores, margins, by_group, dialect)

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.manifest.experiment.get("title") or self.folder.absolute().name

    @property
    def with_paper(self) -> bool:
        """Whether the paper's rows stand beside the run's: asked for by the run, or now."""
        return self.paper or bool(self.manifest.experiment.get("paper"))

    def title(self, part: str, notes: Sequence[str], *, timed: bool = True) -> Title:
        """The heading of one table."""
        tasks = dict.fromkeys(p["title"] for p in self.manifest.experiment.get("parts", ()))
        return Title(self.name + part, "; ".join(tasks), tuple(notes), timed=timed)

    def settings(self) -> list[Setting]:
        """Those that have records; one that has nothing, if none has."""
        found = settings(self.manifest)
        if sum(len(setting.machines) for setting in found) > 1:
            used = {placed.segment for placed in segmented(self.folder)}
            found = settings(self.manifest, used)
        return found or [Setting((), ())]

    def records(self, segments: frozenset[int], *, timed: bool = True) -> Iterator[Record]:
        """The records of some starts; without `timed` marked as not to be timed together."""
        for placed in segmented(self.folder):
            if placed.segment in segments:
                record = placed.record
                yield record if timed else replace(record, flags=(*record.flags, "unlike"))

    def starts(self, segments: frozenset[int]) -> list[dict[str, Any]]:
        """What the manifest knows of them."""
        return [self.manifest.segments[i] for i in sorted(segments)]

    def rows(
        self,
        segments: frozenset[int],
        seen: set[Key] | None = None,
        tap: Callable[[Record], None] = lambda record: None,
        *,
        timed: bool = True,
    ) -> list[Summary]:
        """The summaries of the records of some starts; `seen` takes keys, `tap` is told of each.

        Without `seen` there are no scores in them, without `timed` no times.

        Raises:
            DataError: records of another run.
        """

        def records() -> Iterator[Record]:
            for record in self.records(segments, timed=timed):
                if seen is not None:
                    seen.add(record.key)
                tap(record)
                yield record

        # read after the records: a score counts where its record does
        own = (score for score in self.scores if seen and score.key in seen)
        try:
            return summaries(self.cells, records(), own, combine=combine_of, by_group=self.by_group)
        except (ValueError, KeyError) as error:
            raise DataError(
                f"records that do not fit their manifest ({self.folder}: {error}): expected one "
                "run. Restore the folder from a copy"
            ) from error


def combine_of(cell: Cell) -> Combine:
    """The task's way from scores to one value a sample; needs no data."""
    if cell.work.task is None:
        return average
    try:
        combine: Combine = plug_in("tasks", cell.work.task).combine
    except UsageError:  # a task of a package that is not installed here
        return average
    return combine
