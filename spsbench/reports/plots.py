"""Draw figures with matplotlib: as PNG, as SVG, and as SVG inside a page."""

import re
import textwrap
from io import BytesIO
from typing import Any

from spsbench.messages import visible
from spsbench.reports.reporter import Curve, Figure, Level, Panel

# Okabe-Ito palette, distinct under common colour blindness; markers differ as well
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX"
MUTED, PAPER, INK, GRID = "#555555", "#ffffff", "#1c2127", "#b0b0b0"
OPEN = " (open marks: busy machine)"
SHORT = 40  # characters of labels that fit three in a row
LABEL_WIDTH = 70  # characters of a label line that fit two in a row
TITLE_WIDTH = 130  # characters that fit above several panels
ROW_WIDTH = 30  # characters of a line in the name of a row
ABREAST = 3  # panels side by side
STYLE: Any = {"svg.hashsalt": "spsbench", "svg.fonttype": "path", "font.size": 10.0}
INLINE: Any = {
    "svg.fonttype": "none",
    "legend.frameon": False,
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": MUTED,
}
VARIABLES = {colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)} | {
    MUTED: "var(--muted)",
    PAPER: "var(--card)",
    INK: "var(--ink)",
    GRID: "var(--line)",
}
"""The page's variable for each colour, so that a plot follows light, dark and paper."""


def png(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    return _save_figure(figure, "png", STYLE)


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG; equal numbers give equal bytes."""
    return _save_figure(figure, "svg", STYLE)


def inline_svg(figure: Figure, label: str) -> str:
    """Return the figure as an element of a page: text stays text, colours are CSS variables.

    `label` is its description in markup, also for screen readers.
    """
    salted: Any = {**STYLE, **INLINE, "svg.hashsalt": label}  # ids differ between figures of a page
    text = _save_figure(figure, "svg", salted).decode()
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2]
    body = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    body = re.sub(r'<g id="[^"]+">', "<g>", body)
    # the page's policy refuses style attributes
    body = re.sub(r'style="([^"]*)"', lambda style: _attributes(style.group(1)), body)
    body = re.sub(r'\n *| transform="rotate\(-0 [^"]*"', "", body)
    body = re.sub(r'(?<= )(?:d|x|y|transform)="[^"]*"', _cut_digits, body)
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">{body}</svg>'
    )


def _attributes(style: str) -> str:
    pairs = (part.split(": ", 1) for part in style.split("; "))
    return " ".join(
        f'{name}="{VARIABLES.get(value, value)}"' for name, value in pairs if name != "font-family"
    )


def _cut_digits(attribute: re.Match[str]) -> str:
    return re.sub(r"(?<=\d\.\d)\d+", "", attribute.group())


def draw_figure(figure: Figure) -> Any:
    """Draw the panels as a matplotlib figure, `ABREAST` in a row, titled, with one legend.

    The legend is below, but for one panel with few, short names. Panels of one title share y.
    """
    import matplotlib.figure

    count = len(figure.panels)
    single, abreast = count == 1, min(count, ABREAST)
    deep = -(-count // abreast)
    tall = max(len(panel.rows) for panel in figure.panels)
    names = {item.name for panel in figure.panels for item in panel.items}
    short = max(map(len, names), default=0) <= SHORT
    below = not (single and short) or tall > 0 or len(names) > len(COLOURS)  # the legend
    height = 1.4 + 0.5 * tall if tall else 4.2 if single else 4.6 if deep == 1 else 5.6
    more = 0.22 * max(0, len(names) // (2 + short) - 4) if below else 0.0
    canvas = matplotlib.figure.Figure(
        figsize=(13 if not single or below else 7, height * deep + more), layout="constrained"
    )
    grid = canvas.subplots(deep, abreast, squeeze=False).flatten()
    panels = grid[:count]
    for empty in grid[count:]:
        empty.set_axis_off()
    first: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(panels, figure.panels, strict=True)):
        _draw_panel(axes, panel, names=i % abreast == 0)
        if panel.title and first.setdefault(panel.title, axes) is not axes:
            axes.sharey(first[panel.title])
    for axes, panel in zip(panels, figure.panels, strict=True):
        if panel.from_zero:  # ends the scaling by what is drawn
            axes.set_ylim(bottom=0)
    named: dict[str, Any] = {}
    for axes in panels:  # a line may be missing from some panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels, handles = list(named), list(named.values())
    if single and figure.title:
        panels[0].set_title(_plain(figure.title), parse_math=False, fontsize=9, wrap=True)
    elif figure.title:
        canvas.suptitle(textwrap.fill(_plain(figure.title), TITLE_WIDTH), parse_math=False)
    if not handles:
        return canvas
    if below:
        wrapped = [textwrap.fill(label, LABEL_WIDTH) for label in labels]
        legend = canvas.legend(handles, wrapped, loc="outside lower center", ncols=2 + short)
    else:
        legend = panels[0].legend()
    for text in legend.get_texts():
        text.set_parse_math(False)
    return canvas


def _save_figure(figure: Figure, kind: str, style: Any) -> bytes:
    """Return `figure` as a file of `kind` (png or svg), drawn in `style`, without a date."""
    import matplotlib as mpl

    with mpl.rc_context(style):
        canvas, file = draw_figure(figure), BytesIO()
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        canvas.savefig(file, format=kind, dpi=150, metadata=undated)
    return file.getvalue()


def _draw_panel(axes: Any, panel: Panel, names: bool) -> None:
    """Draw a panel: its rows (labelled if `names`), or curves and levels, or why it is empty."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(_plain(panel.title), parse_math=False)
    axes.set_xlabel(_plain(panel.x), parse_math=False)
    axes.set_ylabel(_plain(panel.y), parse_math=False)
    if panel.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25)
    if panel.rows:
        _rows(axes, panel, names)
        return
    for item in panel.items:
        if isinstance(item, Level):
            _level(axes, item)
        else:
            _curve(axes, item)
    if panel.empty and not any(isinstance(item, Curve) for item in panel.items):
        middle = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        lines = "\n".join(map(_plain, panel.empty.split("\n")))
        axes.text(0.5, 0.5, lines, color=MUTED, parse_math=False, **middle)


def _curve(axes: Any, curve: Curve) -> None:
    """Draw points with intervals (open: load) and a ring at the best; a dense curve as a line."""
    colour = COLOURS[curve.line % len(COLOURS)]
    xs, ys = [p.x for p in curve.points], [p.y for p in curve.points]
    if curve.dense:
        axes.plot(xs, ys, color=colour, label=_plain(curve.name))
        return
    look = {"color": colour, "marker": MARKERS[curve.line % len(MARKERS)]}
    loaded = [p for p in curve.points if p.loaded]
    name = f"{curve.name}{OPEN}" if loaded else curve.name
    joined = {} if curve.joined else {"linestyle": "none"}
    axes.errorbar(xs, ys, yerr=_bars(curve), label=_plain(name), capsize=3, **look, **joined)
    if loaded:  # an open marker over the filled one
        where = [p.x for p in loaded], [p.y for p in loaded]
        axes.plot(*where, linestyle="none", markerfacecolor=PAPER, zorder=4, **look)
    if curve.best is not None:
        at = curve.best.x, curve.best.y
        rings = {"s": 160, "facecolors": "none", "linewidths": 1.8, "zorder": 5}
        axes.scatter([at[0]], [at[1]], edgecolors=colour, **rings)
        axes.annotate(f"K={at[0]:g}", at, (9, 9), textcoords="offset points")


def _bars(curve: Curve) -> list[list[float]]:
    below = [0.0 if p.low is None else p.y - p.low for p in curve.points]
    return [below, [0.0 if p.high is None else p.high - p.y for p in curve.points]]


def _rows(axes: Any, panel: Panel, names: bool) -> None:
    """Draw values to the right, a row each (labelled if `names`): bars or marks, and levels."""
    lengths = [0.0] * len(panel.rows)
    for item in panel.items:
        colour = MUTED if item.line is None else COLOURS[item.line % len(COLOURS)]
        if isinstance(item, Level):
            axes.axvline(item.y, color=colour, linestyle=":", linewidth=1)
            continue
        rows, values = [int(p.x) for p in item.points], [p.y for p in item.points]
        if panel.stacked:
            starts = [lengths[row] for row in rows]
            axes.barh(rows, values, 0.5, starts, color=colour, label=_plain(item.name))
            for row, value in zip(rows, values, strict=True):
                lengths[row] += value
            continue
        marker = MARKERS[item.line % len(MARKERS)]
        axes.errorbar(
            values, rows, xerr=_bars(item), linestyle="none", marker=marker, color=colour,
            capsize=3, label=_plain(item.name),
        )  # fmt: skip
        for point in item.points:
            if point.loaded:
                axes.plot([point.y], [point.x], marker, color=colour, markerfacecolor=PAPER)
            at = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(f"{point.y:.4g}", (point.y, point.x), **at)
    axes.set_ylim(len(panel.rows) - 0.5, -0.7)
    labels = [textwrap.fill(_plain(row), ROW_WIDTH) for row in panel.rows] if names else []
    axes.set_yticks(range(len(panel.rows)), labels or [""] * len(panel.rows), parse_math=False)
    axes.margins(x=0.12)


def _level(axes: Any, level: Level) -> None:
    """Draw a baseline dashed or a bound dotted; a name says if it was timed under load."""
    colour = MUTED if level.line is None else COLOURS[level.line % len(COLOURS)]
    style = ":" if level.line is None else "--"
    name = f"{level.name} (busy machine)" if level.loaded else level.name
    axes.axhline(level.y, color=colour, linestyle=style, label=_plain(name))


def _plain(text: str) -> str:
    """Return ASCII text without a leading underscore, which matplotlib would hide."""
    ascii_text = visible(text).encode("ascii", "backslashreplace").decode()
    return f" {ascii_text}" if ascii_text.startswith("_") else ascii_text
