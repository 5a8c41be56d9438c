"""The plot of an audit: the money won against each arm, token by token, and the alarm."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from spsbench.reports.plots import COLOURS, STYLE

Curve = Sequence[tuple[int, float]]
"""(tokens, log10 of the money)."""


def png(curves: Mapping[str, Curve], alarm: float, heading: str) -> bytes:
    """The curves as PNG; `alarm` is log10 of the money that means a bias."""
    return _draw(curves, alarm, heading, "png")


def svg(curves: Mapping[str, Curve], alarm: float, heading: str) -> bytes:
    """The curves as SVG, the same bytes for the same figures."""
    return _draw(curves, alarm, heading, "svg")


def _draw(curves: Mapping[str, Curve], alarm: float, heading: str, kind: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        panel = figure.subplots()
        for i, (name, curve) in enumerate(curves.items()):
            at, money = [x for x, _ in curve], [max(y, -3.0) for _, y in curve]
            panel.plot(at, money, color=COLOURS[i % len(COLOURS)], label=name)
        panel.axhline(alarm, color="#555555", linestyle=":", label="alarm")
        panel.set_xlabel("tokens")
        panel.set_ylabel("log10 of the e-value")
        panel.grid(alpha=0.25)
        panel.legend()
        panel.set_title(heading, parse_math=False, fontsize=9, wrap=True)

        file = BytesIO()
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(file, format=kind, dpi=150, metadata=undated)
    return file.getvalue()
