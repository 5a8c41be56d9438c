"""Exhibits as marks and axes, and paired comparisons of runs on their common prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from spsbench.metrics.intervals import PLAIN, Estimate, Floats, Jackknife
from spsbench.metrics.parity import Parity, Qualities, parity, parity_margins
from spsbench.metrics.rates import RATES, gains
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import AT, Tally, numbered
from spsbench.metrics.text_checks import Texts, identical
from spsbench.reports.figure1 import K, figure1, lines
from spsbench.reports.figures import Curve, Figure, Level, Point
from spsbench.reports.page.escape import shown
from spsbench.reports.text import visible
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names

Kind = Literal["forest", "curves", "parts", "scatter"]
BARS = "Bars are 95 % intervals over samples."


class PlotPoint(NamedTuple):
    """A point with its interval and its row."""

    row: int  # -1 = no row: filters never hide the mark
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    kind: str = ""  # "loaded": timed under load; "paper": Chen et al. 2023


FREE = -1  # row number of marks without a row
LOADED, PAPER = "loaded", "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Marks of one colour."""

    name: str
    marks: tuple[PlotPoint, ...]
    level: bool = False  # a dashed line at one value for all x
    dense: bool = False  # too many points for a marker each
    line: int | None = None  # colour; None = colour of the method
    best: int | None = None  # index of the optimum


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A pair of axes."""

    title: str
    x: str
    y: str = ""
    series: tuple[Series, ...]
    from_zero: bool = False
    diagonal: bool = False  # draw the line x = y
    one: bool = False  # draw a line at 1
    zero: bool = False  # draw a line at 0
    unit: str = ""
    digits: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Axes under one heading, with explanations of the figures and of the error bars."""

    id: str
    title: str
    kind: Kind
    says: str  # description, also for screen readers
    terms: tuple[str, ...] = ()  # figures in the plot: see `definitions`
    axes: tuple[Axes, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def exhibit(axes: Sequence[Axes], **about: Any) -> list[Exhibit]:
    """Return the exhibit in a list, or an empty list if there is nothing to draw."""
    drawn = tuple(plot for plot in axes if plot.series)
    return [Exhibit(axes=drawn, **about)] if drawn else []


def drawn(figure: Figure, **about: Any) -> list[Exhibit]:
    """Convert a `Figure` to an exhibit."""
    return exhibit(
        [
            Axes(
                title=shown(panel.title),
                x=shown(panel.x),
                y=shown(panel.y),
                from_zero=panel.from_zero,
                series=tuple(_mark_series(item) for item in panel.items),
            )
            for panel in figure.panels
        ],
        kind="curves",
        **about,
    )


def _mark_series(item: Curve | Level) -> Series:
    name = shown(item.name, 200)
    if isinstance(item, Level):
        mark = PlotPoint(FREE, 0, item.y, kind=LOADED if item.loaded else "")
        return Series(name=name, marks=(mark,), level=True, line=item.line)
    best = None if item.best is None else item.points.index(item.best)
    marks = tuple(map(_free, item.points))
    return Series(name=name, marks=marks, line=item.line, dense=item.dense, best=best)


def _free(point: Point) -> PlotPoint:
    return PlotPoint(FREE, *point[:4], kind=LOADED if point.loaded else "")


class Side(NamedTuple):
    """Aggregates of one run, by cell."""

    name: str
    tallies: Mapping[str, tuple[Cell, Tally]]
    qualities: Mapping[str, Qualities] = {}  # scores in [0, 1]
    greedy: Mapping[str, Texts] = {}


class Pairing(NamedTuple):
    """A configuration of a later run compared with the first run."""

    name: str
    run: str
    cell: str  # cell in the later run
    shared: int  # number of generations (sample, repeat) timed in both runs
    faster: Estimate | None  # ratio of mean token times, first run over this run
    tau: Estimate | None  # tau of this run minus tau of the first
    quality: tuple[Parity, ...] = ()  # `ars` is the first run, `sps` this run


def pairings(first: Side, runs: Sequence[Side]) -> list[Pairing]:
    """Pair every configuration of the later runs with the same names in the first run."""
    keys = Names(cell for cell, _ in first.tallies.values())
    first_arms = {
        (cell.task, keys.full(cell)): (cell, tally) for cell, tally in first.tallies.values()
    }
    paired = []
    for run in runs:
        names = Names(cell for cell, _ in run.tallies.values())
        for cell, tally in run.tallies.values():
            before, base = first_arms.get((cell.task, keys.full(cell)), (cell, None))
            if base is None or not base.keys or not tally.keys:
                continue
            gained = gains(base, tally, cell.k).speedup
            shared = len(base.keys.keys() & tally.keys.keys())
            theirs, ours = first.qualities.get(before.id, {}), run.qualities.get(cell.id, {})
            same = identical(run.greedy.get(cell.id, {}), first.greedy.get(before.id, {}))
            quality = tuple(_quality(theirs, ours, same))
            tau = _tau(base, tally)
            name = names.full(cell)
            paired.append(Pairing(name, run.name, cell.id, shared, gained, tau, quality))
    return paired


def beside(paired_rows: Sequence[tuple[Pairing, int]]) -> list[Exhibit]:
    """Plot the differences, one line a configuration, with the row of each."""
    values: dict[str, list[PlotPoint]] = {}
    for pairing, row in paired_rows:
        differences = {"Times as fast": pairing.faster, "tau, difference": pairing.tau}
        differences |= {f"{visible(p.metric)}, difference": p.shown for p in pairing.quality}
        for title, e in differences.items():
            if e is not None:
                values.setdefault(title, []).append(PlotPoint(row, row, e.mean, e.low, e.high))
    axes = [
        Axes(
            title=title,
            x=title,
            series=(Series(name=title, marks=tuple(marks)),),
            one=title == "Times as fast",
            zero=title != "Times as fast",
            unit="x" if title == "Times as fast" else "",
            digits=3 if title != "Times as fast" else 2,
        )
        for title, marks in values.items()
    ]
    return exhibit(
        axes,
        id="beside",
        title="Differences between runs",
        kind="forest",
        says="Each configuration against the first run's, paired by prompt and repeat, so that "
        "differences between prompts cancel. An interval that crosses the dashed line shows no "
        "difference. Intervals are over prompts and do not include how a machine varies from day "
        "to day.",
        terms=("mean_token_time_ms", "block_efficiency", "quality"),
    )


def _quality(base: Qualities, other: Qualities, same: bool) -> list[Parity]:
    parities = [
        parity(metric, base[metric], other[metric], parity_margins()[metric], identical=same)
        for metric in other
        if metric in base and metric in parity_margins()
    ]
    return [p for p in parities if p is not None]


def _tau(base: Tally, other: Tally) -> Estimate | None:
    keys = [key for key in other.keys if key in base.keys]
    if not keys:
        return None
    width = len(AT)
    rows = [t.rows[[t.keys[key] for key in keys], :width] for t in (other, base)]
    rate = RATES["block_efficiency"]

    def difference(sums: Floats) -> Floats:
        return rate(sums[..., :width]) - rate(sums[..., width:])

    samples = numbered([sample for sample, _ in keys])
    return Jackknife(np.hstack(rows), samples).estimate(difference, AT["rounds"], PLAIN)


def against_k(tables: Sequence[tuple[str, Sequence[tuple[int, Summary]]]]) -> list[Exhibit]:
    """Plot Figure 1 of Chen et al. 2023 and three more panels, if any line has several K.

    Args:
        tables: (name, rows with their indices), each plotted by `figure1`.
    """
    if not any(len(line) > 2 for _, rows in tables for line in lines(_bare(rows)).values()):
        return []
    panels: dict[str, list[Series]] = {}
    looks: dict[str, tuple[bool, bool]] = {}
    colour = 0
    for name, rows in tables:
        by_line = list(lines(_bare(rows)).values())
        index = {id(s): i for i, s in rows}
        for panel in figure1(_bare(rows), name).panels:
            looks[panel.title] = panel.from_zero, False
            for item in panel.items:
                members = by_line[item.line or 0]
                panels.setdefault(panel.title, []).append(
                    _series(item, members, index, name, colour)
                )
        for title, read in MORE_BY_K.items():
            looks[title] = False, title.startswith("Speed-up")
            for at, (label, members) in enumerate(lines(_bare(rows)).items()):
                estimates = [(s, *s.at_any_load(read)) for s in members if s.cell.k]
                marks = tuple(
                    PlotPoint(index[id(s)], s.cell.k or 0, e.mean, e.low, e.high, LOADED * loaded)
                    for s, e, loaded in estimates
                    if e is not None
                )
                panels.setdefault(title, []).append(
                    Series(name=_named(name, label), marks=marks, line=colour + at)
                )
        colour += len(by_line)
    return exhibit(
        [
            Axes(title=title, x=K, series=tuple(s), from_zero=looks[title][0], one=looks[title][1])
            for title, s in panels.items()
        ],
        id="against-k",
        title="Against K: Figure 1 of the paper, and what explains it",
        kind="curves",
        says="Dashed lines are ArS, rings mark the shortest time. Bars are 95 % intervals over "
        "samples; those of the time to N tokens are one standard deviation over generations.",
        terms=("horizon_time_ms", "efficiency", "loop_time_ms", "speedup", "block_efficiency"),
    )


MORE_BY_K = {
    "Speed-up over ArS": "speedup",
    "Block efficiency tau": "block_efficiency",
    "Acceptance rate alpha": "alpha",
}


def _series(
    item: Curve | Level, members: Sequence[Summary], index: dict[int, int], run: str, colour: int
) -> Series:
    line = None if item.line is None else colour + item.line
    if isinstance(item, Level):
        plain = index[id(members[0])]
        return Series(
            name=_named(run, item.name),
            marks=(PlotPoint(plain, 0, item.y, kind=LOADED * item.loaded),),
            level=True,
            line=line,
        )
    of_k = {s.cell.k: index[id(s)] for s in members}
    marks = tuple(PlotPoint(of_k[int(p.x)], *p[:4], LOADED * p.loaded) for p in item.points)
    best = None if item.best is None else item.points.index(item.best)
    return Series(name=_named(run, item.name), marks=marks, line=line, dense=item.dense, best=best)


def _named(run: str, name: str) -> str:
    return shown(f"{run}: {name}" if run else name, 200)


def _bare(rows: Sequence[tuple[int, Summary]]) -> list[Summary]:
    return [s for _, s in rows]
