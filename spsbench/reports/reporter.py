"""Reports: tables with all figures and remarks, computed before a reporter formats them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spsbench.hardware.contention import OTHERS_AT_MOST
from spsbench.metrics.compare import OverSeeds, over_seeds
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.metrics.parity import Parity, Qualities
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import MARK, Column, PaperRow, beside, columns, full
from spsbench.reports.figures import Curve, Figure, Level, Panel, Point, Sheet
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.labels import NAMED, Names, setting
from spsbench.settings.records import Record
from spsbench.spec import Spec

MEASURED_FROM = 10  # generations whose measured time to the horizon suffices for a row
K = "K, tokens drafted a round"


def figure1(rows: Sequence[Summary], title: str, ceiling_ms: float | None = None) -> Figure:
    """Return Figure 1 of Chen et al. 2023: time to 128 tokens, efficiency and loop time, against K.

    `ceiling_ms` is the memory-bound minimum of the time of an ArS token (`bandwidth`).
    """
    horizon = max((s.horizon for s in rows), default=128)
    times: list[Curve | Level] = []
    efficiency: list[Curve | Level] = []
    loop: list[Curve | Level] = []
    for line, (label, members) in enumerate(lines(rows).items()):
        times += _times(members, label, line)
        efficiency += _curve(members, label, line, "efficiency")
        loop += _curve(members, label, line, "loop_time_ms")
    if ceiling_ms is not None:
        times.append(Level(name="memory bound of ArS", y=horizon * ceiling_ms / 1e3))
    return Figure(
        title=title,
        panels=(
            Panel(
                title=f"Time to {horizon} tokens (s)",
                x=K,
                items=tuple(times),
                whole=True,
                from_zero=True,
                empty=why_empty(rows, timed=True),
            ),
            Panel(
                title="Efficiency tau / (K + 1)",
                x=K,
                items=tuple(efficiency),
                whole=True,
                empty=why_empty(rows, timed=False),
            ),
            Panel(
                title="Loop time (ms)",
                x=K,
                items=tuple(loop),
                whole=True,
                from_zero=True,
                empty=why_empty(rows, timed=True),
            ),
        ),
    )


def why_empty(rows: Sequence[Summary], *, timed: bool) -> str:
    """Explain a panel without lines; return an empty string if there are rows to draw."""
    drafting = [s for s in rows if s.cell.k]
    if not drafting:
        return "no row has a constant K of 1 or more"
    if not any(s.n for s in drafting):
        return f"all {sum(s.failures for s in drafting)} generations failed"
    if timed and not any(s.timed + s.loaded for s in drafting):
        good = sum(s.n for s in drafting)
        return f"{good} of {good} timings are\nof first calls, or of unlike machines"
    return ""


def lines(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group rows into lines (label -> rows by K, from K = 0 on); see `columns.NAMES`.

    A line varies in K only. A baseline belongs to each line that is compared with it. Schedules
    that are not constant have no K and no line.
    """
    drafting = [s for s in rows if s.cell.k]
    keys = {_key(s.cell): s for s in drafting}
    found: dict[str, list[Summary]] = {}
    for key, first in keys.items():
        own = [s for s in drafting if _key(s.cell) == key]
        plain = first.cell.auto_regressive
        base = [s for s in rows if s.cell.k == 0 and s.cell.auto_regressive == plain]
        label = _label(first, list(keys.values()))
        label = label if label not in found else f"{label} ({len(found) + 1})"
        found[label] = base[:1] + sorted(own, key=lambda s: s.cell.k or 0)
    return found


class Reached(NamedTuple):
    """A row and its seconds to the horizon."""

    row: Summary
    time: Estimate
    loaded: bool  # mean over timings under load, as there are no others


def horizon_times(members: Sequence[Summary]) -> tuple[list[Reached], bool]:
    """Return seconds to the horizon for the rows of one line, and whether they were measured.

    Times are measured if all generations of every row reached the horizon, or at least
    `MEASURED_FROM` did. Else the time is the mean token time times the horizon.
    """
    known = [(s.at_any_load("horizon_time_ms")[0], s.timed or s.loaded) for s in members]
    measured = all(own is not None and own.n >= min(MEASURED_FROM, timed) for own, timed in known)
    figure, scale = ("horizon_time_ms", 1e-3) if measured else ("mean_token_time_ms", 0.0)
    times = []
    for s in members:
        own, loaded = s.at_any_load(figure)
        if own is not None:
            seconds = own.mean * (scale or s.horizon * 1e-3)
            times.append(Reached(s, Estimate(seconds, None, None, own.n), loaded))
    return times, measured


def _times(members: Sequence[Summary], label: str, line: int) -> list[Curve | Level]:
    """Return the means with standard deviations, and the baseline."""
    timed, measured = horizon_times(members)
    if not measured:
        label = f"{label} (mean token time x {members[0].horizon})"
    points = []
    for s, time, loaded in timed:
        if s.cell.k:
            sd = s.spread.sd if s.spread and measured else None
            sides = (None, None) if sd is None else (time.mean - sd / 1e3, time.mean + sd / 1e3)
            points.append(Point(s.cell.k, time.mean, sides[0], sides[1], loaded))
    made: list[Curve | Level] = []
    if points:
        best = min(points, key=lambda point: (point.y, point.x))
        made.append(Curve(name=label, points=tuple(points), line=line, best=best))
    plain = [(time.mean, loaded) for s, time, loaded in timed if s.cell.k == 0]
    return made + [
        Level(name=f"{label}, ArS", y=mean, line=line, loaded=loaded) for mean, loaded in plain
    ]


def _curve(
    members: Sequence[Summary],
    label: str,
    line: int,
    figure: str,
) -> list[Curve]:
    """Return the means with their intervals, from K = 0 on."""
    known = [(s.cell.k or 0, *s.at_any_load(figure)) for s in members]
    points = tuple(
        Point(k, e.mean, e.low, e.high, loaded) for k, e, loaded in known if e is not None
    )
    return [Curve(name=label, points=points, line=line)] if points else []


def _key(cell: Cell) -> Cell:
    return cell.but(schedule=Spec("constant"))


def _label(summary: Summary, among: Sequence[Summary]) -> str:
    """Join task and setting with the other names that differ between lines."""
    parts = [str(summary.cell.work.task or ""), setting(summary.cell)]
    cell, cells = summary.cell, [s.cell for s in among]
    for heading, read in NAMED.items():
        own = read(cell)
        if heading in ("target", "draft", "engine") and any(read(c) != own for c in cells):
            parts.append(own)
        if heading == "seed" and any(read(c) != own for c in cells):
            parts.append(f"seed {own}")
    for part in ("drafter", "verifier"):
        specs = {str(getattr(s.cell.method, part)) for s in among}
        if len(specs) > 1:
            parts.append(str(getattr(cell.method, part)))
    alike = [each.but(schedule=constant(1), verifier=AUTO) for each in cells]
    parts.append(Names(alike).rest(cell))
    return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Title:
    """The heading of a table."""

    run: str
    task: str = ""  # dataset in words: data, count, revision
    notes: tuple[str, ...] = ()  # for instance the source of the paper's figures
    timed: bool = True  # the table has times; unlike machines have separate tables

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
    part: bool = False  # times of one machine; an earlier table has the same records
    provenance: Sequence[Mapping[str, Any]] = ()  # time, versions, machine of each start
    records: Callable[[], Iterator[Record]] = lambda: iter(())  # each call streams from disk
    parities: Sequence[tuple[Cell, Parity]] = ()  # quality of each drafting cell against ArS
    qualities: Mapping[str, Qualities] = field(default_factory=dict)  # cell -> scores, 0 .. 1

    @property
    def whole(self) -> list[Summary]:
        """Return the rows over all groups, one a cell."""
        return [row for row in self.rows if row.group is None]


@dataclass(frozen=True, slots=True)
class Medium:
    """The output medium of a text."""

    width: int = 160  # columns
    plain: bool = False  # ASCII only


@dataclass(frozen=True, slots=True)
class Report:
    """A document of tables and sheets."""

    title: str
    tables: Sequence[Table]
    medium: Medium = Medium()
    sheets: Sequence[Sheet] = ()  # findings, for formats that support sheets


Reporter = Callable[[Report], bytes | str]
"""Formatter of a file: report -> content. Text is UTF-8."""


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
    """Build a table with columns, remarks and figure.

    Args:
        rows: one per cell, and one per group if there are groups.
        shown: columns that replace the default; the paper's rows are omitted then.
        paper: whether to add the paper's rows of Table 1.
        ceiling_ms: memory-bound minimum of an ArS token's time in ms; None = unknown.
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
    """Return the lines below a table: its basis, missing data, and its own notes."""
    good, failed = sum(s.n for s in rows), sum(s.failures for s in rows)
    cut, samples = max((s.cut for s in rows), default=0), max((s.samples for s in rows), default=0)
    loaded = sum(s.loaded for s in rows)
    flagged = good - sum(s.timed for s in rows) - loaded
    lines = [
        f"{good} generations over up to {samples} samples. Brackets are 95 % intervals over "
        f"samples; fewer than {FEWEST} samples have none, unless every one or none succeeds."
    ]
    lengths = [s.text_tokens.mean for s in rows if s.text_tokens is not None]
    if lengths:
        lines.append(f"Mean length of the texts: {_between(min(lengths), max(lengths))} tokens.")
    if failed:
        lines.append(f"{failed} generations failed and are left out of every figure.")
    if flagged and title.timed:
        lines.append(f"{flagged} timings of first calls are left out of the times.")
    if loaded and title.timed:
        lines += under_load(loaded, loaded + sum(s.timed for s in rows))
    if cut:
        lines.append(f"{cut} prompts were truncated to fit the context.")
    return lines + list(title.notes)


def seed_lines(found: Sequence[OverSeeds], rows: Sequence[Summary]) -> list[str]:
    """Describe the variation over seeds on the same samples, one line a cell."""
    lines, names = [], Names(each.cell for each in found)
    for each in found:
        told = [
            f"{column.heading} {full(each.figures[column.figure], column.digits, column.unit)}"
            for column in columns(rows)
            if column.figure in each.figures
        ]
        lines.append(
            f"Over {len(each.seeds)} seeds, {names.full(each.cell)}: "
            f"{', '.join(told)} (95 % intervals over seeds, Student's t)."
        )
    return lines


def under_load(loaded: int, timed: int) -> list[str]:
    """Explain timings under load and recommend a repetition."""
    return [
        f"{loaded} of {timed} timings were taken under load: other programs used more than "
        f"{OTHERS_AT_MOST:.0%} of the processors. Figures marked {MARK} include them; times "
        "without the mark do not. A speed-up compares neighbouring generations under the same "
        "load, so it stays valid, with a wider interval; CPU ms/token is processor time, which "
        "load hardly changes.",
        "For times to quote, stop the other programs (top lists them) and run again with "
        "--overwrite; more --repeats give more undisturbed timings.",
    ]


def _between(low: float, high: float) -> str:
    first, last = f"{low:.0f}", f"{high:.0f}"
    return first if first == last else f"{first} to {last}"


def in_categories(report: Report) -> bool:
    """Return whether any prompt of the report has a category."""
    return any(row.group for table in report.tables for row in table.rows)


def known_categories(report: Report) -> Report:
    """Return the report without rows by category in tables whose prompts have no category."""
    return replace(report, tables=[_known(table) for table in report.tables])


def _known(table: Table) -> Table:
    if any(row.group for row in table.rows):
        return table
    kept = [pair for pair in zip(table.rows, table.paper, strict=True) if pair[0].group is None]
    return replace(table, rows=[row for row, _ in kept], paper=[paper for _, paper in kept])
