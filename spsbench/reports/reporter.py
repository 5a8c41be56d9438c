"""Reports: tables with all figures and remarks, computed before a reporter formats them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.metrics.compare import OverSeeds, over_seeds
from spsbench.metrics.parity import Parity, Qualities
from spsbench.metrics.summaries import Summary
from spsbench.metrics.text_checks import GreedyTexts
from spsbench.reports.columns import Column, PaperRow, columns, paper_row
from spsbench.reports.figure1 import figure1
from spsbench.reports.figures import Figure, Section, TextTable
from spsbench.reports.remarks import basis, seed_lines
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record
from spsbench.store.progress import Progress
from spsbench.store.starts import Start


@dataclass(frozen=True, slots=True)
class Title:
    """The heading of a table."""

    run: str
    task: str = ""  # dataset in words: data, count, revision
    notes: tuple[str, ...] = ()  # for instance the source of the paper's figures
    timed: bool = True  # the records are of alike machines, whose times may be averaged

    def __str__(self) -> str:
        return f"{self.run}: {self.task}" if self.task else self.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Comparable rows: a run, on one machine."""

    title: Title
    rows: Sequence[Summary]
    columns: Sequence[Column]  # figures in order, the headline first
    paper: Sequence[PaperRow | None]  # the paper's row for each row
    remarks: Sequence[str]  # lines below the table
    figure: Figure
    identity: Mapping[str, Any] = field(
        default_factory=dict
    )  # identity in JSON: digests; a plan's answer
    seeds: Sequence[OverSeeds] = ()  # over rows that differ in the seed only
    starts: Sequence[Start] = ()  # with time, versions and machine
    records: Callable[[], Iterator[Record]] = lambda: iter(())  # each call streams from disk
    parities: Sequence[tuple[Cell, Parity]] = ()  # quality of each drafting cell against ArS
    qualities: Mapping[str, Qualities] = field(default_factory=dict)  # cell -> scores, 0 .. 1
    greedy: GreedyTexts = field(default_factory=lambda: GreedyTexts(()))
    further: Sequence[TextTable] = ()  # tables of other figures of these rows, such as by batch
    progress: Progress | None = None  # of the whole run; None = it is unknown what was planned

    @property
    def whole(self) -> list[Summary]:
        """Return the rows over all groups, one a cell."""
        return [row for row in self.rows if row.group is None]

    @property
    def lack(self) -> str:
        """Return what an interrupted run adds to its name in headings; empty for a whole run."""
        progress = self.progress
        return "" if progress is None or progress.whole else f" (incomplete: {progress})"

    def planned(self, cell: Cell) -> int | None:
        """Return the planned generations of a cell; None where that is unknown."""
        return None if self.progress is None else self.progress.planned.get(cell.id)


@dataclass(frozen=True, slots=True)
class Medium:
    """The output medium of a text."""

    width: int = 160  # columns
    plain: bool = False  # ASCII only


@dataclass(frozen=True, slots=True)
class Report:
    """A document of tables and sections."""

    title: str
    tables: Sequence[Table]
    medium: Medium = Medium()
    sections: Sequence[Section] = ()  # findings, for formats that support sections


Reporter = Callable[[Report], bytes | str]
"""Formatter of a file: report -> content. Text is UTF-8."""


def table_of(
    rows: Sequence[Summary],
    title: Title,
    *,
    selected: Sequence[Column] | None = None,
    ceiling_ms: float | None = None,
    paper: bool = False,
    **about: Any,
) -> Table:
    """Build a table with columns, remarks and figure.

    Args:
        rows: one per cell, and one per group if there are groups.
        selected: columns that replace the default; the paper's rows are omitted then.
        paper: whether to add the paper's rows of Table 1.
        ceiling_ms: memory-bound minimum of an ArS token's time in ms; None = unknown.
        about: further fields of the table, such as `starts` and `records`.
    """
    whole = [row for row in rows if row.group is None]
    seeds = over_seeds(whole)
    return Table(
        title=title,
        rows=rows,
        columns=columns(rows) if selected is None else selected,
        paper=[paper_row(row) if paper and selected is None else None for row in rows],
        remarks=[*basis(whole, title.timed), *title.notes, *seed_lines(seeds, whole)],
        seeds=seeds,
        figure=figure1(whole, str(title), ceiling_ms),
        **about,
    )


def in_categories(report: Report) -> bool:
    """Return whether any prompt of the report has a category."""
    return any(row.group for table in report.tables for row in table.rows)
