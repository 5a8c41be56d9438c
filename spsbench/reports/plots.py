"""Figure 1 of Chen et al. 2023: time to 128 tokens, efficiency and loop time, each against K."""

import textwrap
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from spsbench.figures.intervals import Estimate
from spsbench.figures.summary import Summary
from spsbench.reports.columns import NAMES
from spsbench.reports.quoting import visible
from spsbench.reports.reporter import Title
from spsbench.settings.cell import Cell
from spsbench.settings.names import setting
from spsbench.spec import Spec

# Okabe and Ito's colours, told apart under every common colour blindness; markers differ as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
SHORT = 40  # characters of labels that fit three in a row
TITLE_WIDTH = 130  # characters that fit above the panels
FEWEST = 10  # generations whose time to the horizon stands for a row
STYLE: Any = {"svg.hashsalt": "spsbench", "svg.fonttype": "path", "font.size": 10.0}


def png(rows: Sequence[Summary], title: Title, *, ceiling_ms: float | None = None) -> bytes:
    """The three panels as PNG; `ceiling_ms` is the least time of an ArS token (`bandwidth`)."""
    return _saved(rows, title, ceiling_ms, "png")


def svg(rows: Sequence[Summary], title: Title, *, ceiling_ms: float | None = None) -> bytes:
    """The three panels as SVG, the same bytes for the same figures."""
    return _saved(rows, title, ceiling_ms, "svg")


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


def draw(rows: Sequence[Summary], title: Title, ceiling_ms: float | None = None) -> Any:
    """The three panels as a figure of matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    horizon = max((s.horizon for s in rows), default=128)
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    panels = figure.subplots(1, 3)
    headings = (f"Time to {horizon} tokens (s)", "Efficiency tau / (K + 1)", "Loop time (ms)")
    for panel, heading in zip(panels, headings, strict=True):
        panel.set_title(heading)
        panel.set_xlabel("K, tokens drafted a round")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panel.grid(alpha=0.25)
    for i, (label, members) in enumerate(lines(rows).items()):
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        _times(panels[0], members, label, look)
        _curve(panels[1], members, lambda s: s.efficiency, look)
        _curve(panels[2], members, lambda s: s.loop_time_ms, look)
    if ceiling_ms is not None:
        bound = horizon * ceiling_ms / 1e3
        panels[0].axhline(bound, color="#555555", linestyle=":", label="memory bound of ArS")
    panels[0].set_ylim(bottom=0)
    panels[2].set_ylim(bottom=0)
    heading = f"{title.run}: {title.task}" if title.task else title.run
    figure.suptitle(textwrap.fill(_plain(heading), TITLE_WIDTH), parse_math=False)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        columns = 3 if max(map(len, labels)) <= SHORT else 2
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _saved(rows: Sequence[Summary], title: Title, ceiling_ms: float | None, kind: str) -> bytes:
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure, file = draw(rows, title, ceiling_ms), BytesIO()
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(file, format=kind, dpi=150, metadata=undated)
    return file.getvalue()


def _times(panel: Any, members: Sequence[Summary], label: str, look: dict[str, Any]) -> None:
    """Mean with standard deviation; the optimum ringed, the baseline as a dashed line."""
    timed, measured = horizon_times(members)
    if not measured:
        label = f"{label} (mean token time x {members[0].horizon})"
    drafting = [(s, time) for s, time in timed if s.cell.k]
    if drafting:
        ks, means = [s.cell.k for s, _ in drafting], [time.mean for _, time in drafting]
        sds = [s.spread.sd if s.spread and measured else None for s, _ in drafting]
        spreads = [(sd or 0.0) / 1e3 for sd in sds]
        panel.errorbar(ks, means, yerr=spreads, label=label, capsize=3, **look)
        least, best = min(zip(means, ks, strict=True))
        rings = {"s": 160, "facecolors": "none", "linewidths": 1.8, "zorder": 5}
        panel.scatter([best], [least], edgecolors=look["color"], **rings)
        panel.annotate(f"K={best}", (best, least), (9, 9), textcoords="offset points")
    for s, time in timed:
        if s.cell.k == 0:
            panel.axhline(time.mean, color=look["color"], linestyle="--", label=f"{label}, ArS")


def _curve(
    panel: Any,
    members: Sequence[Summary],
    figure: Callable[[Summary], Estimate | None],
    look: dict[str, Any],
) -> None:
    """Means with their intervals, from K = 0 on."""
    known = [(s.cell.k, e) for s in members if (e := figure(s)) is not None]
    if not known:
        return
    below = [0.0 if e.low is None else e.mean - e.low for _, e in known]
    above = [0.0 if e.high is None else e.high - e.mean for _, e in known]
    ks, means = [k for k, _ in known], [e.mean for _, e in known]
    panel.errorbar(ks, means, yerr=[below, above], capsize=3, **look)


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
        specs = {str(getattr(s.cell, part)) for s in among}
        if len(specs) > 1:
            parts.append(str(getattr(summary.cell, part)))
    return _plain(", ".join(part for part in parts if part))


def _plain(text: str) -> str:
    """ASCII, for the font may lack the rest; a leading underscore would hide a label."""
    shown = visible(text).encode("ascii", "backslashreplace").decode()
    return f" {shown}" if shown.startswith("_") else shown
