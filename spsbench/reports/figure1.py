"""Figure 1 of Chen et al. 2023: time to 128 tokens, efficiency and loop time, each against K."""

from collections.abc import Callable, Sequence

from spsbench.figures.intervals import Estimate
from spsbench.figures.summary import Summary
from spsbench.reports.columns import NAMES
from spsbench.reports.figure import Curve, Figure, Level, Panel, Point
from spsbench.settings.cell import Cell
from spsbench.settings.names import setting
from spsbench.spec import Spec

FEWEST = 10  # generations whose time to the horizon stands for a row
K = "K, tokens drafted a round"


def figure1(rows: Sequence[Summary], title: str, ceiling_ms: float | None = None) -> Figure:
    """The three panels; `ceiling_ms` is the least time of an ArS token (`bandwidth`)."""
    horizon = max((s.horizon for s in rows), default=128)
    times: list[Curve | Level] = []
    efficiency: list[Curve | Level] = []
    loop: list[Curve | Level] = []
    for line, (label, members) in enumerate(lines(rows).items()):
        times += _times(members, label, line)
        efficiency += _curve(members, label, line, lambda s: s.efficiency)
        loop += _curve(members, label, line, lambda s: s.loop_time_ms)
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
            ),
            Panel(title="Efficiency tau / (K + 1)", x=K, items=tuple(efficiency), whole=True),
            Panel(title="Loop time (ms)", x=K, items=tuple(loop), whole=True, from_zero=True),
        ),
    )


def lines(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Label -> its rows by K, from K = 0 on. A line is all that varies but K; see `columns.NAMES`.

    A baseline belongs to every line that it is a baseline of; schedules other than constant have no
    K and are in no line.
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


def horizon_times(members: Sequence[Summary]) -> tuple[list[tuple[Summary, Estimate]], bool]:
    """Seconds to the horizon for the rows of one line, and whether they were measured.

    They are where all generations of every row got that far, or at least `FEWEST`. Else those that
    did would stand for all the shorter ones: every row has its mean token time times the horizon.
    """
    reached = [(s.horizon_time_ms.n if s.horizon_time_ms else 0, s.timed) for s in members]
    measured = all(0 < n >= min(FEWEST, timed) for n, timed in reached)
    times = []
    for s in members:
        own, rate = s.horizon_time_ms, s.mean_token_time_ms
        if measured and own is not None:
            times.append((s, Estimate(own.mean / 1e3, None, None, own.n)))
        elif rate is not None:
            times.append((s, Estimate(s.horizon * rate.mean / 1e3, None, None, rate.n)))
    return times, measured


def _times(members: Sequence[Summary], label: str, line: int) -> list[Curve | Level]:
    """Mean with standard deviation, and the baseline."""
    timed, measured = horizon_times(members)
    if not measured:
        label = f"{label} (mean token time x {members[0].horizon})"
    points = []
    for s, time in timed:
        if s.cell.k:
            sd = s.spread.sd if s.spread and measured else None
            sides = (None, None) if sd is None else (time.mean - sd / 1e3, time.mean + sd / 1e3)
            points.append(Point(s.cell.k, time.mean, *sides))
    made: list[Curve | Level] = []
    if points:
        best = min(points, key=lambda point: (point.y, point.x))
        made.append(Curve(name=label, points=tuple(points), line=line, best=best))
    plain = [time.mean for s, time in timed if s.cell.k == 0]
    return made + [Level(name=f"{label}, ArS", y=mean, line=line) for mean in plain]


def _curve(
    members: Sequence[Summary],
    label: str,
    line: int,
    figure: Callable[[Summary], Estimate | None],
) -> list[Curve]:
    """Means with their intervals, from K = 0 on."""
    known = [(s.cell.k or 0, e) for s in members if (e := figure(s)) is not None]
    points = tuple(Point(k, e.mean, e.low, e.high) for k, e in known)
    return [Curve(name=label, points=points, line=line)] if points else []


def _key(cell: Cell) -> Cell:
    return cell.but(schedule=Spec("constant"))


def _label(summary: Summary, among: Sequence[Summary]) -> str:
    """Task and setting, and of the other names those in which lines differ."""
    parts = [str(summary.cell.work.task or ""), setting(summary.cell)]
    for heading, read in NAMES:
        own = read(summary)
        if heading in ("target", "draft", "engine") and any(read(s) != own for s in among):
            parts.append(own)
    for part in ("drafter", "verifier"):
        specs = {str(getattr(s.cell.method, part)) for s in among}
        if len(specs) > 1:
            parts.append(str(getattr(summary.cell.method, part)))
    return ", ".join(part for part in parts if part)
