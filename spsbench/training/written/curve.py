"""Acceptance over steps, as a figure."""

from collections.abc import Sequence

from spsbench.reports.figure import Curve, Figure, Panel, Point
from spsbench.training.course.look import Look


def curve(looks: Sequence[Look], title: str) -> Figure:
    """Alpha by depth, tau, and the predicted speed-up where it is known."""
    depth = len(looks[-1].seen.alpha)
    shown = sorted({0, depth // 2, depth - 1})
    alphas = tuple(
        Curve(
            name=f"depth {d + 1}",
            line=number,
            points=tuple(Point(look.step, *look.seen.alpha[d]) for look in looks),
        )
        for number, d in enumerate(shown)
    )
    tau = Curve(
        name=f"K = {depth}",
        line=len(shown),
        points=tuple(Point(look.step, look.seen.tau(depth)) for look in looks),
    )
    panels = [
        Panel(title="Acceptance", x="steps", y="alpha", items=alphas, from_zero=True),
        Panel(title="Tokens a round", x="steps", y="tau", items=(tau,)),
    ]
    gains = tuple(Point(look.step, look.gain.speedup) for look in looks if look.gain)
    if gains:
        gained = Curve(name="at the best K", line=len(shown) + 1, points=gains)
        panels.append(Panel(title="Predicted", x="steps", y="speed-up", items=(gained,)))
    return Figure(title=title, panels=tuple(panels))
