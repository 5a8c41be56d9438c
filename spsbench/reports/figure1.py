"""Figure 1 of Chen et al. 2023 as numbers: time to 128 tokens, efficiency and loop time by K."""

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.reports.reporter import Curve, Figure, Level, Panel, Point, curves
from spsbench.settings.cell import AUTO, Cell, constant
from spsbench.settings.labels import NAMED, Names, setting
from spsbench.spec import Spec

MEASURED_FROM = 10  # generations whose measured time to the horizon suffices for a row
K = "K, tokens drafted a round"


def figure1(rows: Sequence[Summary], title: str, ceiling_ms: float | None = None) -> Figure:
    """Return Figure 1 of Chen et al. 2023: time to the horizon, efficiency, loop time, against K.

    The horizon is the rows' greatest (128). `ceiling_ms`: least ms of an ArS token by `bandwidth`.
    """
    horizon = max((s.horizon for s in rows), default=128)
    lines = lines_by_k(rows)
    times = [
        item
        for line, (label, members) in enumerate(lines.items())
        for item in _times(members, label, line)
    ]
    if ceiling_ms is not None:
        times.append(Level(name="memory bound of ArS", y=horizon * ceiling_ms / 1e3))
    timed: dict[str, Any] = {"from_zero": True, "empty": why_empty(rows, timed=True)}
    panels = (
        Panel(title=f"Time to {horizon} tokens (s)", x=K, items=times, whole=True, **timed),
        by_k(lines, "efficiency", "Efficiency tau / (K + 1)", empty=why_empty(rows, timed=False)),
        by_k(lines, "loop_time_ms", "Loop time (ms)", **timed),
    )
    return Figure(title=title, panels=panels)


def by_k(lines: Mapping[str, Sequence[Summary]], figure: str, title: str, **look: Any) -> Panel:
    """Return a panel of a figure against K, from 0 on, a curve a line; `look`: further fields."""
    points = (
        (label, [Point.of(s.cell.k or 0, s.figures.get(figure)) for s in members])
        for label, members in lines.items()
    )
    return Panel(title=title, x=K, items=curves(points), whole=True, **look)


def why_empty(rows: Sequence[Summary], *, timed: bool) -> str:
    """Return why a panel (`timed`: of times) of all `rows` has no lines; "" if it has some."""
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
    drafting = (s for s in rows if s.cell.k)
    groups = group_by(drafting, lambda s: s.cell.but(schedule=Spec("constant")))
    cells = [members[0].cell for members in groups.values()]
    by_label: dict[str, list[Summary]] = {}
    for cell, members in zip(cells, groups.values(), strict=True):
        plain = cell.auto_regressive
        base = [s for s in rows if s.cell.k == 0 and s.cell.auto_regressive == plain]
        label = _label(cell, cells)
        label = label if label not in by_label else f"{label} ({len(by_label) + 1})"
        by_label[label] = base[:1] + sorted(members, key=lambda s: s.cell.k or 0)
    return by_label


def horizon_times(members: Sequence[Summary]) -> tuple[list[tuple[Summary, Estimate]], bool]:
    """Return (row, seconds to the horizon) of a line's timed rows, and whether that was measured.

    Times are measured if all generations of every row reached the horizon, or at least
    `MEASURED_FROM` did. Else the time is the mean token time times the horizon.
    """
    estimates = [(s.horizon_time_ms, s.timed or s.loaded) for s in members]
    measured = all(
        estimate is not None and estimate.n >= min(MEASURED_FROM, timed)
        for estimate, timed in estimates
    )
    figure = "horizon_time_ms" if measured else "mean_token_time_ms"
    times = []
    for s in members:
        if (estimate := s.figures.get(figure)) is not None:
            seconds = estimate.mean * (1e-3 if measured else s.horizon * 1e-3)
            times.append((s, Estimate(seconds, None, None, estimate.n, estimate.loaded)))
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
    levels = [
        Level(name=f"{label}, ArS", y=time.mean, line=line, loaded=time.loaded)
        for s, time in timed
        if s.cell.k == 0
    ]
    return [*curves([(label, points)], line, best=best), *levels]


def _label(cell: Cell, cells: Sequence[Cell]) -> str:
    """Return task, setting and, of `cells` (one a line), what else differs, joined by commas."""
    parts = [str(cell.task or ""), setting(cell)]
    for heading in ("target", "draft", "engine", "seed"):
        read = NAMED[heading]
        if any(read(c) != read(cell) for c in cells):
            parts.append(f"seed {read(cell)}" if heading == "seed" else read(cell))
    for part in ("drafter", "verifier"):
        if len({str(getattr(c, part)) for c in cells}) > 1:
            parts.append(str(getattr(cell, part)))
    alike = [c.but(schedule=constant(1), verifier=AUTO) for c in cells]
    parts.append(Names(alike).option_text(cell))
    return ", ".join(part for part in parts if part)
