"""Figure 1 of Chen et al. 2023 as numbers: time to 128 tokens, efficiency and loop time by K."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.reporter import Curve, Figure, Level, Panel, Point, curve_of
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.labels import NAMED, Names, setting
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
    for line, (label, members) in enumerate(lines_by_k(rows).items()):
        times += _times(members, label, line)
        efficiency += _curve(members, label, line, "efficiency")
        loop += _curve(members, label, line, "loop_time_ms")
    if ceiling_ms is not None:
        times.append(Level(name="memory bound of ArS", y=horizon * ceiling_ms / 1e3))
    panels = (
        (f"Time to {horizon} tokens (s)", times, True),
        ("Efficiency tau / (K + 1)", efficiency, False),
        ("Loop time (ms)", loop, True),
    )
    return Figure(
        title=title,
        panels=tuple(
            Panel(
                title=of_panel,
                x=K,
                items=tuple(items),
                whole=True,
                from_zero=timed,
                empty=why_empty(rows, timed=timed),
            )
            for of_panel, items, timed in panels
        ),
    )


def by_k(rows: Sequence[Summary], figure: str, title: str) -> Panel:
    """Return a panel of a figure against K, a curve for each of `lines_by_k`."""
    curves = [
        curve
        for line, (label, members) in enumerate(lines_by_k(rows).items())
        for curve in _curve(members, label, line, figure)
    ]
    return Panel(title=title, x=K, items=tuple(curves), whole=True)


def why_empty(rows: Sequence[Summary], *, timed: bool) -> str:
    """Return why a panel has no lines; "" if there are rows to draw."""
    drafting = [s for s in rows if s.cell.k]
    if not drafting:
        return "no row has a constant K of 1 or more"
    if not any(s.n for s in drafting):
        return f"all {sum(s.failures for s in drafting)} generations failed"
    if timed and not any(s.timed + s.loaded for s in drafting):
        good = sum(s.n for s in drafting)
        return f"{good} of {good} timings are\nof first calls, or of unlike machines"
    return ""


def lines_by_k(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group rows into lines (label -> rows by K, from K = 0 on); see `columns.NAMES`.

    A line varies in K only. A baseline belongs to each line that is compared with it. Schedules
    that are not constant have no K and no line.
    """
    drafting = [s for s in rows if s.cell.k]
    keys = {_key(s.cell): s for s in drafting}
    by_label: dict[str, list[Summary]] = {}
    for key, first in keys.items():
        members = [s for s in drafting if _key(s.cell) == key]
        plain = first.cell.auto_regressive
        base = [s for s in rows if s.cell.k == 0 and s.cell.auto_regressive == plain]
        label = _label(first, list(keys.values()))
        label = label if label not in by_label else f"{label} ({len(by_label) + 1})"
        by_label[label] = base[:1] + sorted(members, key=lambda s: s.cell.k or 0)
    return by_label


class Reached(NamedTuple):
    """A row and its seconds to the horizon."""

    row: Summary
    time: Estimate


def horizon_times(members: Sequence[Summary]) -> tuple[list[Reached], bool]:
    """Return seconds to the horizon for the rows of one line, and whether they were measured.

    Times are measured if all generations of every row reached the horizon, or at least
    `MEASURED_FROM` did. Else the time is the mean token time times the horizon.
    """
    estimates = [(s.horizon_time_ms, s.timed or s.loaded) for s in members]
    measured = all(
        estimate is not None and estimate.n >= min(MEASURED_FROM, timed)
        for estimate, timed in estimates
    )
    figure, scale = ("horizon_time_ms", 1e-3) if measured else ("mean_token_time_ms", 0.0)
    times = []
    for s in members:
        estimate = s.figures.get(figure)
        if estimate is not None:
            seconds = estimate.mean * (scale or s.horizon * 1e-3)
            times.append(Reached(s, Estimate(seconds, None, None, estimate.n, estimate.loaded)))
    return times, measured


def _times(members: Sequence[Summary], label: str, line: int) -> list[Curve | Level]:
    """Return a curve of the mean times by K, with standard deviations, and a level for ArS."""
    timed, measured = horizon_times(members)
    if not measured:
        label = f"{label} (mean token time x {members[0].horizon})"
    points = []
    for s, time in timed:
        if s.cell.k:
            sd = s.spread["sd"] if s.spread and measured else None
            sides = (None, None) if sd is None else (time.mean - sd / 1e3, time.mean + sd / 1e3)
            points.append(Point(s.cell.k, time.mean, sides[0], sides[1], time.loaded))
    best = min(points, key=lambda point: (point.y, point.x), default=None)
    return curve_of(label, points, line, best=best) + [
        Level(name=f"{label}, ArS", y=time.mean, line=line, loaded=time.loaded)
        for s, time in timed
        if s.cell.k == 0
    ]


def _curve(members: Sequence[Summary], label: str, line: int, figure: str) -> list[Curve]:
    """Return the curve of a figure by K, with intervals, from K = 0 on; [] without a value."""
    points = (Point.of(s.cell.k or 0, s.figures.get(figure)) for s in members)
    return curve_of(label, points, line)


def _key(cell: Cell) -> Cell:
    return cell.but(schedule=Spec("constant"))


def _label(summary: Summary, among: Sequence[Summary]) -> str:
    """Return task, setting and the other names that differ between lines, joined by commas."""
    parts = [str(summary.cell.task or ""), setting(summary.cell)]
    cell, cells = summary.cell, [s.cell for s in among]
    for heading, read in NAMED.items():
        value = read(cell)
        if heading in ("target", "draft", "engine") and any(read(c) != value for c in cells):
            parts.append(value)
        if heading == "seed" and any(read(c) != value for c in cells):
            parts.append(f"seed {value}")
    for part in ("drafter", "verifier"):
        specs = {str(getattr(s.cell, part)) for s in among}
        if len(specs) > 1:
            parts.append(str(getattr(cell, part)))
    alike = [c.but(schedule=constant(1), verifier=AUTO) for c in cells]
    parts.append(Names(alike).option_text(cell))
    return ", ".join(part for part in parts if part)
