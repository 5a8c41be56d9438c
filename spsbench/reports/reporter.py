"""What a report is: all figures and lines are made before a reporter lays them out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.hardware.contention import OTHERS_AT_MOST
from spsbench.metrics.intervals import FEWEST
from spsbench.metrics.parity import Parity
from spsbench.metrics.quality import Qualities
from spsbench.metrics.seeds import OverSeeds, over_seeds
from spsbench.metrics.summary import Summary
from spsbench.reports.columns import MARK, Column, columns, full
from spsbench.reports.figure import Figure
from spsbench.reports.figure1 import figure1
from spsbench.reports.paper import PaperRow, beside
from spsbench.reports.sheet import Sheet
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names
from spsbench.settings.records import Record


@dataclass(frozen=True, slots=True)
class Title:
    """The heading of a table."""

    run: str
    task: str = ""  # what was used, in words: data, count, revision
    notes: tuple[str, ...] = ()  # for instance whose figures stand beside the measured ones
    timed: bool = True  # times are in it; those of unlike machines stand apart

    def __str__(self) -> str:
        return f"{self.run}: {self.task}" if self.task else self.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that may be compared with each other: a run, on one machine."""

    title: Title
    rows: Sequence[Summary]
    columns: Sequence[Column]  # the figures to show, the headline first
    paper: Sequence[PaperRow | None]  # beside each row, the paper's own
    remarks: Sequence[str]  # the lines below it: what it stands on, and what it shows
    figure: Figure
    identity: Mapping[str, Any] = field(
        default_factory=dict
    )  # of its JSON: digests; a plan's answer
    seeds: Sequence[OverSeeds] = ()  # of rows that differ only in their seed
    part: bool = False  # the times of one machine; its records are in a table before as well
    provenance: Sequence[Mapping[str, Any]] = ()  # of each start: time, versions, machine
    records: Callable[[], Iterator[Record]] = lambda: iter(())  # read anew at each call, streamed
    parities: Sequence[tuple[Cell, Parity]] = ()  # quality of each drafting cell against ArS
    qualities: Mapping[str, Qualities] = field(default_factory=dict)  # of each cell, 0 .. 1

    @property
    def whole(self) -> list[Summary]:
        """The rows over all groups: one a cell."""
        return [row for row in self.rows if row.group is None]


@dataclass(frozen=True, slots=True)
class Medium:
    """Where a text will be seen."""

    width: int = 160  # columns
    plain: bool = False  # it has no more than ASCII


@dataclass(frozen=True, slots=True)
class Report:
    """One document."""

    title: str
    tables: Sequence[Table]
    medium: Medium = Medium()
    sheets: Sequence[Sheet] = ()  # findings beside the rows, for formats that show them


Reporter = Callable[[Report], bytes | str]
"""A report -> the content of a file. Text is UTF-8."""


def table_of(
    rows: Sequence[Summary],
    title: Title,
    *,
    shown: Sequence[Column] | None = None,
    ceiling_ms: float | None = None,
    provenance: Sequence[Mapping[str, Any]] = (),
    records: Callable[[], Iterator[Record]] = lambda: iter(()),
    paper: bool = False,
    part: bool = False,
    parities: Sequence[tuple[Cell, Parity]] = (),
    qualities: Mapping[str, Qualities] | None = None,
) -> Table:
    """Rows with all that is said of them.

    Args:
        rows: those of groups among them, if there are.
        shown: other columns than the usual ones, which the paper has no figures for.
        paper: whether the paper's own rows stand beside those that Table 1 has.
        ceiling_ms: the least time of an ArS token that memory allows; None = unknown.
        provenance, records, part, parities, qualities: see `Table`.
    """
    whole = [row for row in rows if row.group is None]
    seeds = over_seeds(whole)
    return Table(
        title=title,
        rows=rows,
        columns=columns(rows) if shown is None else shown,
        paper=[beside(row) if paper and shown is None else None for row in rows],
        remarks=[*remarks(whole, title), *seed_lines(seeds, whole)],
        seeds=seeds,
        figure=figure1(whole, str(title), ceiling_ms),
        provenance=provenance,
        records=records,
        part=part,
        parities=parities,
        qualities=qualities or {},
    )


def remarks(rows: Sequence[Summary], title: Title) -> list[str]:
    """The lines below a table: what it stands on, what is missing from it, and its own notes."""
    good, failed = sum(s.n for s in rows), sum(s.failures for s in rows)
    cut, samples = max((s.cut for s in rows), default=0), max((s.samples for s in rows), default=0)
    loaded = sum(s.loaded for s in rows)
    flagged = good - sum(s.timed for s in rows) - loaded
    lines = [
        f"{good} generations of up to {samples} samples; intervals: 95 %, over samples, "
        f"none over fewer than {FEWEST} unless none succeed, or every one."
    ]
    lengths = [s.text_tokens.mean for s in rows if s.text_tokens is not None]
    if lengths:
        lines.append(f"Texts have {_between(min(lengths), max(lengths))} tokens on average.")
    if failed:
        lines.append(f"{failed} generations failed and are in no figure.")
    if flagged and title.timed:
        lines.append(f"{flagged} timings were of first calls and are in no time.")
    if loaded and title.timed:
        lines += under_load(loaded, loaded + sum(s.timed for s in rows))
    if cut:
        lines.append(f"{cut} prompts were cut to fit the context.")
    return lines + list(title.notes)


def seed_lines(found: Sequence[OverSeeds], rows: Sequence[Summary]) -> list[str]:
    """What varies when the same samples are drawn anew, a line a cell."""
    lines, names = [], Names(each.cell for each in found)
    for each in found:
        told = [
            f"{column.heading} {full(each.figures[column.figure], column.digits, column.unit)}"
            for column in columns(rows)
            if column.figure in each.figures
        ]
        lines.append(
            f"Over {len(each.seeds)} seeds, {names.full(each.cell)}: "
            f"{', '.join(told)} (95 % over seeds, Student's t)."
        )
    return lines


def under_load(loaded: int, timed: int) -> list[str]:
    """What it means that some of the timings were disturbed, and what to do."""
    return [
        f"{loaded} of {timed} timings were taken under load: other work had more than "
        f"{OTHERS_AT_MOST:.0%} of the processors. Figures marked {MARK} have them in; times "
        "without the mark are of undisturbed timings alone. A speed-up is a ratio of generations "
        "that follow each other and share the load, so it is kept, with a wider interval; CPU "
        "ms/token is the work of the processors, which load hardly changes.",
        "For times that can be quoted, end other work (top shows it) and run again with "
        "--overwrite; more --repeats bring more undisturbed timings.",
    ]


def _between(low: float, high: float) -> str:
    first, last = f"{low:.0f}", f"{high:.0f}"
    return first if first == last else f"{first} to {last}"
