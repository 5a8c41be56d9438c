"""Exhibits of the page: plots of all rows, and aggregates over records in one streaming pass."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from spsbench.metrics.parity import is_percent
from spsbench.metrics.rates import MS
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import SLOTS, Tally
from spsbench.metrics.text_checks import GreedyTexts, Same
from spsbench.reports.columns import SOURCE, PaperRow, headline
from spsbench.reports.page.paired import (
    BARS,
    LOADED,
    PAPER,
    Axes,
    Exhibit,
    PlotPoint,
    Series,
    exhibit,
)
from spsbench.reports.text import visible
from spsbench.settings.cell import AUTO, Cell
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record
from spsbench.store.withheld import is_withheld

HEADLINES = (
    ("speedup", "Speed-up over ArS", "x", 2, True),
    ("answer_speedup", "Speed-up of the whole answer, prefill included", "x", 2, True),
    ("predicted_speedup", "Predicted speed-up over ArS", "x", 2, True),
    ("mean_token_time_ms", "Mean token time, ms", "", 2, False),
    ("terms.predicted_ms", "Predicted mean token time, ms", "", 2, False),
    ("block_efficiency", "Block efficiency tau, tokens a round", "", 2, False),
    ("terms.predicted_tau", "Predicted tau, tokens a round", "", 2, False),
    ("alpha", "Acceptance rate alpha", "", 3, False),
    ("ttft_ms", "Time to the first token, ms", "", 1, False),
    ("answer_ms", "Time to the last token, ms", "", 1, False),
)
MARKED = "Open marks were timed under load."

Papers = Sequence[PaperRow | None]
"""The paper's row for each row, or None."""


def headlines(rows: Sequence[Summary], papers: Papers) -> list[Exhibit]:
    """Plot the headline figures and scores of all rows next to each other."""
    alone = any(s.predicted_speedup is not None and s.speedup is None for s in rows)
    figures = [figure for figure in HEADLINES if alone or figure[0] != "predicted_speedup"]
    for metric in sorted(headline(rows)):
        figures.append(
            (f"quality.{metric}", visible(metric), "", 2 if is_percent(metric) else 4, False)
        )
    axes = [
        Axes(title=title, x=title, series=(marks,), one=one, unit=unit, digits=digits)
        for name, title, unit, digits, one in figures
        if (marks := _of(rows, papers, name)).marks
    ]
    return exhibit(
        axes,
        id="headlines",
        title="Every configuration at a glance",
        kind="forest",
        says=f"One row for each configuration. {BARS} {_marked(axes)}",
        terms=tuple(plot.series[0].name.removeprefix("terms.").partition(".")[0] for plot in axes),
    )


def by_position(rows: Sequence[Summary], names: Sequence[str]) -> list[Exhibit]:
    """Plot the acceptance rate by position in a round; for trees by depth and by sibling."""
    deep = any(s.sibling_at for s in rows)
    kinds = (
        ("position in the round", [() if s.sibling_at else s.alpha_at for s in rows]),
        ("depth in the tree", [s.alpha_at if s.sibling_at else () for s in rows]),
        ("child of its node, in the order drawn", [s.sibling_at for s in rows]),
    )
    axes = []
    for x, values in kinds:
        series = (
            Series(
                name=names[i],
                marks=tuple(
                    PlotPoint(i, at, e.mean, e.low, e.high)
                    for at, e in enumerate(rates, start=1)
                    if e is not None
                ),
            )
            for i, rates in enumerate(values)
        )
        title = f"By {x}" if deep else ""
        axes.append(Axes(title=title, x=x, y="kept / tested", series=_some(list(series))))
    return exhibit(
        axes,
        id="by-position",
        title=f"Acceptance by position{' and by depth' if deep else ''}",
        kind="curves",
        says="The share of tested draft tokens that were kept, at each position of a round. "
        f"A flat line means that acceptances are independent. {BARS}",
        terms=("alpha_at", *(["sibling_at"] if deep else [])),
    )


def parts_of_round(rows: Sequence[Summary]) -> list[Exhibit]:
    """Plot the mean time of a round, split by the shares of the decode time."""
    shares = {
        "draft": "draft_share",
        "target": "target_share",
        "verify and the rest": "verify_share",
    }
    series = [
        Series(name=name, line=at, marks=tuple(_parts(rows, figure)))
        for at, (name, figure) in enumerate(shares.items())
    ]
    return exhibit(
        [Axes(title="", x="loop time, ms", series=_some(series))],
        id="parts",
        title="Where a round's time goes",
        kind="parts",
        says="The loop time of each configuration, parted by the shares of its decode time. The "
        "intervals in the table are those of the shares.",
        terms=("loop_time_ms", "draft_share", "target_share", "verify_share"),
    )


def speed_and_quality(rows: Sequence[Summary], papers: Papers) -> list[Exhibit]:
    """Plot each score against the mean token time."""
    axes = []
    for metric in sorted(headline(rows)):
        marks = []
        for i, (s, theirs) in enumerate(zip(rows, papers, strict=True)):
            time, loaded = s.at_any_load("mean_token_time_ms")
            e = s.quality.get(metric)
            if time is not None and e is not None:
                marks.append(PlotPoint(i, time.mean, e.mean, e.low, e.high, LOADED * loaded))
            value = _theirs(theirs, f"quality.{metric}")
            if theirs is not None and value is not None and marks and marks[-1].row == i:
                marks.append(PlotPoint(i, theirs.mean_token_time_ms, value, kind=PAPER))
        if marks:
            name = visible(metric)
            series = (Series(name=name, marks=tuple(marks)),)
            axes.append(Axes(title=name, x="mean token time, ms", y=name, series=series))
    return exhibit(
        axes,
        id="speed-quality",
        title="Speed against quality",
        kind="scatter",
        says="Left is faster, up is better. A lossless method moves a point to the left and "
        f"leaves its height where it was, up to chance. {BARS} {_marked(axes)}",
        terms=("mean_token_time_ms", "quality"),
    )


def predicted(rows: Sequence[Summary]) -> list[Exhibit]:
    """Plot the speed-up predicted by alpha and the costs against the measured speed-up."""
    marks = []
    for i, s in enumerate(rows):
        expected, (measured, loaded) = s.predicted_speedup, s.at_any_load("speedup")
        if s.cell.k != 0 and expected is not None and measured is not None:
            marks.append(
                PlotPoint(
                    i, expected.mean, measured.mean, measured.low, measured.high, LOADED * loaded
                )
            )
    series = (Series(name="speed-up", marks=tuple(marks)),) if marks else ()
    axes = [Axes(title="", x="predicted", y="measured", series=series, diagonal=True, unit="x")]
    return exhibit(
        axes,
        id="predicted",
        title="Predicted and measured speed-up",
        kind="scatter",
        says="On the line the two agree; below it the run was slower than its acceptance and "
        f"costs predict. {BARS} {_marked(axes)}",
        terms=("predicted_speedup", "speedup"),
    )


def _of(rows: Sequence[Summary], papers: Papers, figure: str) -> Series:
    marks = []
    for i, (s, theirs) in enumerate(zip(rows, papers, strict=True)):
        e, loaded = s.at_any_load(figure)
        if e is not None:
            marks.append(PlotPoint(i, i, e.mean, e.low, e.high, LOADED * loaded))
            value = _theirs(theirs, figure)
            if value is not None:
                marks.append(PlotPoint(i, i, value, kind=PAPER))
    return Series(name=figure, marks=tuple(marks))


def _theirs(theirs: PaperRow | None, figure: str) -> float | None:
    """Return the paper's value of a figure, in the units of the page."""
    if theirs is None:
        return None
    scale = 100 if is_percent(theirs.metric) else 1
    values = {
        "speedup": theirs.speedup,
        "mean_token_time_ms": theirs.mean_token_time_ms,
        f"quality.{theirs.metric}": theirs.result * scale,
    }
    return values.get(figure)


def _parts(rows: Sequence[Summary], figure: str) -> Iterator[PlotPoint]:
    for i, s in enumerate(rows):
        (whole, marked), (share, loaded) = map(s.at_any_load, ("loop_time_ms", figure))
        if whole is not None and share is not None:
            sides = (share.mean, share.low, share.high)
            value, low, high = (None if x is None else whole.mean * x for x in sides)
            yield PlotPoint(i, i, value or 0.0, low, high, LOADED * (marked or loaded))


def _marked(axes: Sequence[Axes]) -> str:
    """Explain the marker shapes in use; empty if all markers are plain."""
    kinds = {m.kind for plot in axes for series in plot.series for m in series.marks}
    notes = [MARKED] if LOADED in kinds else []
    if PAPER in kinds:
        notes.append(f"{SOURCE.replace('Rows marked Chinchilla', 'Dotted marks', 1)}.")
    return " ".join(notes)


def _some(series: Sequence[Series]) -> tuple[Series, ...]:
    return tuple(s for s in series if s.marks)


QUANTILES = 101  # points of a quantile curve with more generations than this
PROMPTS = 6  # prompts shown for each task and setting
OF_CATEGORY = 2  # prompts shown for each category, if prompts have categories
TOKENS = 40_000  # upper limit over all shown generations


class TableSums:
    """Aggregates over the records of one table.

    Args:
        cells: cells of the table.
        numbers: sample -> number, shared by the tables that are paired.
        tokens: limit on the tokens of shown generations.
    """

    def __init__(self, cells: Iterable[Cell], numbers: dict[str, int], tokens: int) -> None:
        self.cells: Mapping[str, Cell] = {cell.id: cell for cell in cells}
        self.tallies = {
            name: Tally(SLOTS if cell.k is None else min(cell.k, SLOTS), 1)
            for name, cell in self.cells.items()
        }
        self.times: dict[str, array[float]] = {name: array("d") for name in self.cells}
        self.by_group: dict[tuple[str, str], array[float]] = {}  # as above, by cell and category
        self.kept: list[Record] = []
        self.texts = 0  # number of generations that could be shown
        self._numbers, self._tokens = numbers, tokens
        self._prompts: dict[tuple[Cell, str | None], dict[str, None]] = {}
        self.greedy = GreedyTexts(self.cells.values())

    def add(self, record: Record) -> None:
        """Aggregate one record."""
        cell = self.cells[record.cell]
        number = self._numbers.setdefault(record.sample, len(self._numbers))
        self.tallies[cell.id].add(record, number)
        if record.error is not None:
            return
        tokens = sum(r.emitted for r in record.rounds)
        if tokens and not record.flags:
            time = MS * sum(r.seconds for r in record.rounds) / tokens
            self.times[cell.id].append(time)
            if record.group is not None:
                self.by_group.setdefault((cell.id, record.group), array("d")).append(time)
        self.greedy.add(record)
        if (record.tokens or record.text) and not is_withheld(record):
            self.texts += 1
            self._keep(cell, record)

    def same(self, cell: Cell) -> Same | None:
        """Count the greedy texts equal to those of ArS token for token; None if none are paired."""
        return self.greedy.same(cell)

    def _keep(self, cell: Cell, record: Record) -> None:
        """Keep the first prompts of each task and setting, under all methods."""
        most = PROMPTS if record.group is None else OF_CATEGORY
        work = cell.auto_regressive.but(target=ModelSpec(""), decoder=AUTO), record.group
        prompts = self._prompts.setdefault(work, {})
        chosen = record.sample in prompts or len(prompts) < most
        if chosen and not record.repeat and len(record.tokens) <= self._tokens:
            prompts[record.sample] = None
            self._tokens -= len(record.tokens)
            self.kept.append(record)


def latency(times: Mapping[int, "array[float]"], names: Mapping[int, str]) -> list[Exhibit]:
    """Plot the distribution of the token time over generations as quantiles, by row."""
    series, counts = [], []
    for row, values in times.items():
        if len(values) < 2:
            continue
        counts.append(len(values))
        shares = np.linspace(0, 100, min(QUANTILES, len(values)))
        marks = zip(np.percentile(np.array(values), shares), shares, strict=True)
        points = tuple(PlotPoint(row, float(ms), float(share)) for ms, share in marks)
        series.append(Series(name=names[row], marks=points, dense=True))
    if not series:
        return []
    binned = (
        f"Drawn from {QUANTILES} quantiles of each configuration's generations, not from each of "
        f"the {sum(counts):,}. "
        if max(counts) > QUANTILES
        else ""
    )
    axes = Axes(
        title="",
        x="ms a token, mean of a generation",
        y="generations that are faster, %",
        series=tuple(series),
    )
    return [
        Exhibit(
            id="latency",
            title="How the time varies",
            kind="curves",
            says="Steep is steady. Speculative sampling is faster on average, but its rounds keep "
            "now more, now fewer tokens, so its times vary more (Chen et al. 2023 warn of it for "
            "latency-critical use), and a text that ends inside a round pays for all of it: read "
            f"P50, P90 and P99, not the mean alone. {binned}",
            terms=("p50", "p90", "p99"),
            axes=(axes,),
        )
    ]


def percentiles(values: "array[float]") -> dict[str, float | None]:
    """Return P50, P90 (from 10 generations) and P99 (from 100 generations), else None."""
    at = dict(zip(("p50", "p90", "p99"), (50, 90, 99), strict=True))
    least = {"p50": 1, "p90": 10, "p99": 100}
    return {
        name: float(np.percentile(np.array(values), q)) if len(values) >= least[name] else None
        for name, q in at.items()
    }
