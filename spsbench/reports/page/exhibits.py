"""Exhibits of the page: a table's rows as figures with explanations."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from spsbench.messages import visible
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.reports.batch_figures import batch_panels
from spsbench.reports.columns import headline, paper_value
from spsbench.reports.figure1 import by_k, lines_by_k
from spsbench.reports.reporter import Curve, Figure, Level, Panel, Point, Section, Table, curves
from spsbench.reports.text import labels
from spsbench.settings.labels import Names
from spsbench.tables import read_table

TEXTS = read_table(__file__, "texts.toml")
SHARES = (("draft", "draft_share"), ("target", "target_share"), ("the rest", "verify_share"))
QUANTILES = 101  # points of a quantile curve with more generations than this

LINE = 240  # characters of a name
Labels = Mapping[str, str]
"""Cell -> its name."""
Rows = Sequence[Summary]
"""The rows of a table over all categories."""


def exhibits(table: Table, times: Mapping[str, "array[float]"], *, answered: bool) -> list[Figure]:
    """Return the exhibits of a table that have something to show.

    `times` are mean token times of generations in ms, by cell. If `answered`, a section of the
    report is the whole answer, with its own curves: those by K and batch are left out.
    """
    rows = table.whole
    of_cells = Names(row.cell for row in rows)
    texts = labels([of_cells.full(row.cell) for row in rows], LINE)
    names = {row.cell.id: text for row, text in zip(rows, texts, strict=True)}
    figures = [
        *([] if answered else [_against_k(table), exhibit("by-batch", batch_panels(table))]),
        *_headlines(table, of_cells),
        _by_position(rows, names),
        _latency(rows, names, times),
        _parts(rows, names),
        _speed_and_quality(rows, names),
        _prediction_figure(rows, names),
    ]
    return [figure for figure in figures if figure is not None]


def of_section(section: Section, number: int) -> Iterator[Figure]:
    """Yield the figures of a finding, with its title and explanation and an id by `number`."""
    for at, figure in enumerate(section.figures):
        yield replace(
            figure,
            id=f"sheet-{number}-{at}",
            title=section.title,
            says=section.says or section.line,
        )


def drawn_numbers(figure: Figure) -> list[list[str]]:
    """Return rows of figure, line, x, value (`*`: load), low, high as text; long curves thinned."""
    cells = []
    for panel in figure.panels:
        for item in panel.items:
            points = (Point(0, item.y),) if isinstance(item, Level) else item.points
            thinned = points[:: max(1, len(points) // 10)] if len(points) > 20 else points
            for x, *values, loaded in thinned:
                at = panel.rows[int(x)] if panel.rows else f"{x:.4g}"
                place = "all" if isinstance(item, Level) else at
                texts = ["" if value is None else f"{value:.4f}" for value in values]
                texts[0] += "*" * loaded
                cells.append([panel.title or panel.y or panel.x, item.name, place, *texts])
    return cells


def exhibit(name: str, panels: Sequence[Panel], **values: str) -> Figure | None:
    """Return the figure `name` of `texts.toml` from panels that have items; None: no panel has.

    `values` fill what its text leaves open.
    """
    drawn, texts = tuple(panel for panel in panels if panel.items), TEXTS["exhibits"][name]
    says, terms = texts["says"].format(bars=TEXTS["bars"], **values), texts.get("terms", "").split()
    title = texts["title"]
    return Figure(title=title, panels=drawn, says=says, terms=(*terms,), id=name) if drawn else None


def _against_k(table: Table) -> Figure | None:
    """Return the plots by K; None unless some line has more than two values of K."""
    lines = lines_by_k(table.whole)
    if not any(len(line) > 2 for line in lines.values()):
        return None
    titles = TEXTS["headlines"]
    more = (by_k(lines, n, titles[n]) for n in ("speedup", "block_efficiency", "alpha"))
    return exhibit("against-k", [*table.figure.panels[:3], *more])


def _headlines(table: Table, names: Names) -> Iterator[Figure]:
    """Yield headline figures and scores, with the paper's, by task and setting, a row a method."""
    rows = table.whole
    alone = any(row.predicted_speedup and row.speedup is None for row in rows)
    figures = [
        figure for figure in TEXTS["headlines"].items() if alone or figure[0] != "predicted_speedup"
    ]
    figures[2:2] = [(f"quality.{metric}", visible(metric)) for metric in sorted(headline(rows))]
    by_work = group_by(rows, lambda row: names.work(row.cell))
    for number, (work, of_work) in enumerate(by_work.items()):
        methods = labels([names.how(row.cell) for row in of_work], LINE)
        panels = []
        for figure, title in figures:
            points = [Point.of(at, row.figures.get(figure)) for at, row in enumerate(of_work)]
            paper_points = [
                Point(at, value)
                for at, row in enumerate(of_work)
                if points[at] and (value := paper_value(table.paper_row(row), figure)) is not None
            ]
            ours = "predicted" if figure.startswith("terms.") else "measured"
            named = (ours, points), ("the paper's (Chinchilla, another machine)", paper_points)
            items: list[Curve | Level] = [*curves(named, joined=False)]
            if items and "speedup" in figure:
                items.append(Level(name="as fast as ArS", y=1.0))
            panels.append(Panel(title=title, x="", items=items, rows=methods))
        if drawn := exhibit("headlines", panels):
            title = f"{drawn.title}{': ' * bool(work)}{work}"
            terms = (figure.removeprefix("terms.").partition(".")[0] for figure, _ in figures)
            yield replace(drawn, id=f"headlines-{number}", title=title, terms=(*terms,))


def _by_position(rows: Rows, names: Labels) -> Figure | None:
    """Plot the acceptance rate by position in a round, for trees by depth and sibling; or None."""
    chains = [row for row in rows if not row.sibling_at]
    trees = [row for row in rows if row.sibling_at]
    panels = []
    for x, of_rows, figure in (
        ("position in the round", chains, "alpha_at"),
        ("depth in the tree", trees, "alpha_at"),
        ("child of its node, in the order sampled", trees, "sibling_at"),
    ):
        rates = ((names[row.cell.id], enumerate(getattr(row, figure), 1)) for row in of_rows)
        items = curves((name, (Point.of(*pair) for pair in pairs)) for name, pairs in rates)
        title = f"By {x}" if trees else ""
        panels.append(Panel(title=title, x=x, y="accepted / tested", items=items, whole=True))
    return exhibit("by-position", panels)


def _latency(rows: Rows, names: Labels, times: Mapping[str, "array[float]"]) -> Figure | None:
    """Plot quantiles by `times` (x; cell -> ms a token), a curve a row of two or more; or None."""
    quantiles = []
    for row in rows:
        values = np.array(times.get(row.cell.id, ()))
        shares = np.linspace(0, 100, min(QUANTILES, len(values)))
        points = zip(np.percentile(values, shares), shares, strict=True) if len(values) > 1 else ()
        quantiles.append((names[row.cell.id], (Point(*point) for point in points)))
    x, y = "ms a token, mean of a generation", "generations that are faster, %"
    return exhibit("latency", [Panel(x=x, y=y, items=curves(quantiles, dense=True))])


def _parts(rows: Rows, names: Labels) -> Figure | None:
    """Plot the mean time of a round in ms as stacked parts, a row a cell; None: none was split."""
    loops = [(row, loop) for row in rows if (loop := row.loop_time_ms) and row.target_share]
    parts = (
        (
            name,
            [
                Point(at, loop.mean * share.mean, None, None, loop.loaded)
                for at, (row, loop) in enumerate(loops)
                if (share := getattr(row, figure)) is not None
            ],
        )
        for name, figure in SHARES
    )
    methods = [names[row.cell.id] for row, _ in loops]
    panel = Panel(x="loop time, ms", items=curves(parts, joined=False), rows=methods, stacked=True)
    return exhibit("parts", [panel])


def _speed_and_quality(rows: Rows, names: Labels) -> Figure | None:
    """Plot tasks' first scores against the mean token time, a panel a metric; None: no scores."""
    panels = []
    for metric in sorted(headline(rows)):
        points = [_against(row.mean_token_time_ms, row.quality.get(metric)) for row in rows]
        items = _a_point_a_row(rows, names, points)
        panels.append(Panel(x="mean token time, ms", y=visible(metric), items=items))
    return exhibit("speed-quality", panels)


def _prediction_figure(rows: Rows, names: Labels) -> Figure | None:
    """Plot the measured speed-up against the predicted one, a point a row; None: no row."""
    points = [
        None if row.cell.k == 0 else _against(row.predicted_speedup, row.speedup) for row in rows
    ]
    xs = [point.x for point in points if point is not None]
    if not xs:
        return None
    ends = tuple(Point(x, x) for x in (min(xs), max(xs)))
    line = Curve(name="measured as predicted", points=ends, line=len(rows), dense=True)
    items = [line, *_a_point_a_row(rows, names, points)]
    return exhibit("predicted", [Panel(x="predicted", y="measured", items=items)])


def _against(x: Estimate | None, y: Estimate | None) -> Point | None:
    return None if x is None else Point.of(x.mean, y)


def _a_point_a_row(rows: Rows, names: Labels, points: Iterable[Point | None]) -> list[Curve]:
    """Return a curve of one point for each row that has one."""
    return curves(
        ((names[row.cell.id], [point]) for row, point in zip(rows, points, strict=True)),
        joined=False,
    )
