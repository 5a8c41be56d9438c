"""Render figures as PNG and SVG with matplotlib."""

import textwrap
from io import BytesIO
from typing import Any

from spsbench.reports.figures import Curve, Figure, Level, Panel
from spsbench.reports.text import visible

# Okabe-Ito palette, distinct under common colour blindness; markers differ as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
OPEN = " (open marks: under load)"
SHORT = 40  # characters of labels that fit three in a row
LABEL_WIDTH = 70  # characters of a label line that fit two in a row
TITLE_WIDTH = 130  # characters that fit above several panels
ABREAST = 3  # panels side by side
STYLE: Any = {"svg.hashsalt": "spsbench", "svg.fonttype": "path", "font.size": 10.0}


def png(figure: Figure) -> bytes:
    """Return the figure as PNG."""
    return _saved(figure, "png")


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG; equal numbers give equal bytes."""
    return _saved(figure, "svg")


def draw(figure: Figure) -> Any:
    """Draw the panels as a matplotlib figure.

    Several panels share a legend below; those of one title share the y axis.
    """
    import matplotlib.figure

    count = len(figure.panels)
    single, deep = count == 1, -(-count // ABREAST)
    canvas = matplotlib.figure.Figure(
        figsize=(7, 4.2) if single else (13, 4.6 if deep == 1 else 5.6 * deep),
        layout="constrained",
    )
    grid = canvas.subplots(deep, min(count, ABREAST), squeeze=False).flatten()
    panels = grid[:count]
    for empty in grid[count:]:
        empty.set_axis_off()
    first: dict[str, Any] = {}
    for axes, panel in zip(panels, figure.panels, strict=True):
        _draw(axes, panel)
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
    if single:
        panels[0].set_title(_plain(figure.title), parse_math=False, fontsize=9, wrap=True)
        legend = panels[0].legend() if handles else None
    else:
        title = textwrap.fill(_plain(figure.title), TITLE_WIDTH)
        canvas.suptitle(title, parse_math=False)
        columns = 3 if max(map(len, labels), default=0) <= SHORT else 2
        wrapped = [textwrap.fill(label, LABEL_WIDTH) for label in labels]
        legend = (
            canvas.legend(handles, wrapped, loc="outside lower center", ncols=columns)
            if handles
            else None
        )
    for text in legend.get_texts() if legend else ():
        text.set_parse_math(False)
    return canvas


def _saved(figure: Figure, kind: str) -> bytes:
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        canvas, file = draw(figure), BytesIO()
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        canvas.savefig(file, format=kind, dpi=150, metadata=undated)
    return file.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(_plain(panel.title))
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25)
    for item in panel.items:
        if isinstance(item, Level):
            _level(axes, item)
        else:
            _curve(axes, item)
    if panel.empty and not any(isinstance(item, Curve) for item in panel.items):
        middle = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, _plain_lines(panel.empty), color="#555555", parse_math=False, **middle)


def _curve(axes: Any, curve: Curve) -> None:
    """Draw points with error bars and circle the optimum."""
    colour = COLOURS[curve.line % len(COLOURS)]
    xs, ys = [p.x for p in curve.points], [p.y for p in curve.points]
    if curve.dense:
        axes.plot(xs, ys, color=colour, label=_plain(curve.name))
        return
    below = [0.0 if p.low is None else p.y - p.low for p in curve.points]
    above = [0.0 if p.high is None else p.high - p.y for p in curve.points]
    look = {"color": colour, "marker": MARKERS[curve.line % len(MARKERS)]}
    loaded = [p for p in curve.points if p.loaded]
    name = f"{curve.name}{OPEN}" if loaded else curve.name
    axes.errorbar(xs, ys, yerr=[below, above], label=_plain(name), capsize=3, **look)
    if loaded:  # an open marker over the filled one
        where = [p.x for p in loaded], [p.y for p in loaded]
        axes.plot(*where, linestyle="none", markerfacecolor="white", zorder=4, **look)
    if curve.best is not None:
        at = curve.best.x, curve.best.y
        rings = {"s": 160, "facecolors": "none", "linewidths": 1.8, "zorder": 5}
        axes.scatter([at[0]], [at[1]], edgecolors=colour, **rings)
        axes.annotate(f"K={at[0]:g}", at, (9, 9), textcoords="offset points")


def _level(axes: Any, level: Level) -> None:
    """Draw a baseline dashed or a bound dotted."""
    colour = "#555555" if level.line is None else COLOURS[level.line % len(COLOURS)]
    style = ":" if level.line is None else "--"
    name = f"{level.name} (under load)" if level.loaded else level.name
    axes.axhline(level.y, color=colour, linestyle=style, label=_plain(name))


def _plain_lines(text: str) -> str:
    return "\n".join(map(_plain, text.split("\n")))


def _plain(text: str) -> str:
    """Return ASCII text without a leading underscore, which matplotlib would hide."""
    ascii_text = visible(text).encode("ascii", "backslashreplace").decode()
    return f" {ascii_text}" if ascii_text.startswith("_") else ascii_text
