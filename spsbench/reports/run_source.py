"""Read access to a run for its tables: manifest, records of each setting, and summaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spsbench.errors import DataError, UsageError
from spsbench.metrics.parity import Combine, average
from spsbench.metrics.summaries import Summary, summaries
from spsbench.plugins import plug_in
from spsbench.reports.reporter import Title
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key, Record, Score
from spsbench.store.manifest import Manifest
from spsbench.store.records import placed_records, records
from spsbench.store.starts import Machine, machines
from spsbench.tasks.scores import read_scores


class Source(NamedTuple):
    """The data of a run that all its tables share."""

    folder: Path
    manifest: Manifest
    cells: list[Cell]
    scores: list[Score]
    margins: Mapping[str, float]
    by_group: bool
    paper: bool = False  # show the paper's rows even if the run did not request them

    @classmethod
    def open(
        cls,
        folder: Path,
        margins: Mapping[str, float],
        by_group: bool = False,
    ) -> "Source":
        """Read the files of a run other than its records.

        Raises:
            SpsError: no run, or a damaged run.
        """
        manifest = Manifest.load(folder)
        cells = list(manifest.configurations(folder).values())
        scores = list(read_scores(folder))
        return cls(folder, manifest, cells, scores, margins, by_group)

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self.manifest.experiment.get("title") or self.folder.absolute().name

    @property
    def with_paper(self) -> bool:
        """Return whether to show the paper's rows: requested by the run or by this report."""
        return self.paper or bool(self.manifest.experiment.get("paper"))

    def title(self, part: str, notes: Sequence[str], *, timed: bool = True) -> Title:
        """Return the heading of one table."""
        tasks = dict.fromkeys(p["title"] for p in self.manifest.experiment.get("parts", ()))
        return Title(self.name + part, "; ".join(tasks), tuple(notes), timed=timed)

    def samples_of(self, cell: Cell) -> int | None:
        """Return how many samples the task of a cell has; None unless the run takes all of them."""
        parts = self.manifest.experiment.get("parts", ())
        cell_parts = [part for part in parts if cell.id in part.get("cells", ())]
        if not cell_parts or any(part.get("limit") is not None for part in cell_parts):
            return None
        return (
            len(self.manifest.experiment.get("samples", {}).get(cell_parts[0].get("task"), ()))
            or None
        )

    def machines(self) -> list[Machine]:
        """Return the kinds of machines that made records."""
        return machines(placed.start for placed in placed_records(self.folder))

    def records(self, *, timed: bool = True) -> Iterator[Record]:
        """Yield the records; without `timed` their times are flagged `unlike`."""
        for record in records(self.folder):
            yield record if timed else replace(record, flags=(*record.flags, "unlike"))

    def rows(
        self,
        seen: set[Key] | None = None,
        tap: Callable[[Record], None] = lambda record: None,
        *,
        timed: bool = True,
    ) -> list[Summary]:
        """Summarise the records; `seen` collects keys, `tap` receives each record.

        Scores require `seen`, and times require `timed`.

        Raises:
            DataError: records of another run.
        """

        def tapped() -> Iterator[Record]:
            for record in self.records(timed=timed):
                if seen is not None:
                    seen.add(record.key)
                tap(record)
                yield record

        # after the records, because a score counts only if its record does
        scores = (score for score in self.scores if seen and score.key in seen)
        try:
            return summaries(
                self.cells,
                tapped(),
                scores,
                combine=combine_of,
                by_group=self.by_group,
            )
        except (ValueError, KeyError) as error:
            raise DataError(
                f"records that do not fit their manifest ({self.folder}: {error}): expected one "
                "run. Restore the folder from a copy"
            ) from error


def combine_of(cell: Cell) -> Combine:
    """Return the task's aggregation from scores to one value a sample; needs no data."""
    if cell.task is None:
        return average
    try:
        combine: Combine = plug_in("tasks", cell.task).combine
    except UsageError:  # the task's package is not installed
        return average
    return combine
