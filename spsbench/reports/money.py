"""The figure of an audit: the money won against each arm, token by token, and the alarm."""

from collections.abc import Mapping, Sequence

from spsbench.reports.figure import Curve, Figure, Level, Panel, Point

LOWEST = -3.0  # of the axis: who has lost more than that has lost

Money = Sequence[tuple[int, float]]
"""(tokens, log10 of the money)."""


def money(curves: Mapping[str, Money], alarm: float, title: str) -> Figure:
    """The e-process of each arm; `alarm` is log10 of the money that means a bias."""
    items = [
        Curve(
            name=name,
            points=tuple(Point(x, max(y, LOWEST)) for x, y in curve),
            line=line,
            dense=True,
        )
        for line, (name, curve) in enumerate(curves.items())
    ]
    panel = Panel(
        x="tokens", y="log10 of the e-value", items=(*items, Level(name="alarm", y=alarm))
    )
    return Figure(title=title, panels=(panel,))
