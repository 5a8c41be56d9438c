"""Records of a report, all figures and remarks computed: reporters only format them.

Plots are plain numbers, independent of the renderer; tables of text and findings are for any.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from spsbench.metrics.compare import OverSeeds
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.parity import Parity, Qualities
from spsbench.metrics.summaries import Summary
from spsbench.metrics.text_checks import GreedyTexts
from spsbench.reports.columns import Column, PaperRow, paper_row
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record
from spsbench.store.progress import Progress
from spsbench.store.starts import Start


class Point(NamedTuple):
    """A value with an optional interval or spread."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    loaded: bool = False  # timed while other work used the machine

    @classmethod
    def of(cls, x: float, estimate: Estimate | None) -> "Point | None":
        """Return the point of an estimate with its interval; None without one."""
        return None if estimate is None else cls(x, *estimate[:3], estimate.loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one colour; in a panel with rows, x is the number of a row."""

    name: str
    points: tuple[Point, ...]
    line: int  # index of the line; selects colour and marker in all panels
    best: Point | None = None  # the optimum
    dense: bool = False  # too many points for a marker each
    joined: bool = True  # by a line, in the order of x


def curves(
    named: Iterable[tuple[str, Iterable[Point | None]]], line: int = 0, **look: Any
) -> list[Curve]:
    """Return a curve for each name that has points other than None, which are left out.

    Each name counts as a line, from `line` on, even without a curve. `look`: further fields of all.
    """
    return [
        Curve(name=name, points=points, line=at, **look)
        for at, (name, of_name) in enumerate(named, start=line)
        if (points := tuple(point for point in of_name if point is not None))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line: a value that does not depend on x."""

    name: str
    y: float
    line: int | None = None  # index of the line whose baseline this is; None = a bound
    loaded: bool = False  # timed while other work used the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes with its curves; with `rows`, y is to the right and a row is a name."""

    title: str = ""
    x: str  # axis labels with units
    y: str = ""
    items: Sequence[Curve | Level]
    whole: bool = False  # x is an integer
    from_zero: bool = False  # y starts at 0
    empty: str = ""  # reason why the panel is empty
    rows: Sequence[str] = ()
    stacked: bool = False  # bars of a row, one behind the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels side by side under one heading; a line has the same name in all panels."""

    title: str
    panels: Sequence[Panel]
    says: str = ""  # how to read it, on a page
    terms: tuple[str, ...] = ()  # figures of `Summary.figures` that a page defines with it
    id: str = ""  # its element's on a page


Status = Literal["good", "bad", "open"]
"""Outcome of a finding; selects its colour."""


class TextTable(NamedTuple):
    """A table of text for any renderer. All text may be user input and must be escaped."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()  # lines below the table
    names: int = 1  # how many of the first columns identify a row
    paper_rows: Sequence[int] = ()  # rows that are the paper's


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A finding with its tables and figures. All text may be user input and must be escaped."""

    title: str
    status: Status
    line: str  # the finding in one sentence
    notes: Sequence[str] = ()
    says: str = ""  # how to read the figures
    figures: Sequence[Figure] = ()
    tables: Sequence[TextTable] = ()
    run: str = ""  # title of the run's table and id of the cell, if the finding belongs to a run
    cell: str = ""
    answers: bool = False  # the section is the whole answer; its rows do not repeat it


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
    paper: bool = False  # whether rows of the paper's Table 1 stand below those they match
    remarks: Sequence[str]  # lines below the table
    figure: Figure
    identity: Mapping[str, Any] = field(default_factory=dict)  # in JSON: digests, a plan's answer
    seeds: Sequence[OverSeeds] = ()  # over rows that differ in the seed only
    starts: Sequence[Start] = ()  # with time, versions and machine
    records: Callable[[], Iterator[Record]] = lambda: iter(())  # each call streams from disk
    parities: Sequence[tuple[Cell, Parity]] = ()  # quality of each drafting cell against ArS
    qualities: Mapping[str, Qualities] = field(default_factory=dict)  # cell -> scores, 0 .. 1
    greedy: GreedyTexts = field(default_factory=lambda: GreedyTexts(()))
    further: Sequence[TextTable] = ()  # tables of other figures of these rows, such as by batch
    progress: Progress | None = None  # the whole run's; None = it is unknown what was planned

    @property
    def whole(self) -> list[Summary]:
        """Return the rows over all groups, one a cell."""
        return [row for row in self.rows if row.group is None]

    @property
    def lack(self) -> str:
        """Return what an interrupted run adds to its name in headings; empty for a whole run."""
        progress = self.progress
        return "" if progress is None or progress.whole else f" (incomplete: {progress})"

    def paper_row(self, row: Summary) -> PaperRow | None:
        """Return the paper's row to show below a row; None: there is none, or none is wanted."""
        return paper_row(row) if self.paper else None

    def planned(self, cell: Cell) -> int | None:
        """Return the planned generations of a cell; None where that is unknown."""
        return None if self.progress is None else self.progress.planned.get(cell.id)


@dataclass(frozen=True, slots=True)
class Report:
    """A document of tables and sections."""

    title: str
    tables: Sequence[Table]
    sections: Sequence[Section] = ()  # findings, for formats that support sections
    width: int = 160  # columns of the medium, for text
    plain: bool = False  # ASCII only


Reporter = Callable[[Report], bytes | str]
"""Formatter of a file: report -> content. Text is UTF-8."""
