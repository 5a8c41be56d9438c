"""A training as a page: what acceptance came to, its curve, and every look at it."""

from collections.abc import Sequence

from spsbench.reports.html import html
from spsbench.reports.reporter import Report
from spsbench.reports.sheet import Grid, Sheet
from spsbench.training.course.look import Look
from spsbench.training.course.watch import Share
from spsbench.training.written.curve import curve


def page(looks: Sequence[Look], best: Look, title: str, ended: str) -> str:
    """The looks of a training as one file of HTML.

    Args:
        best: the look whose weights were written.
        ended: why it ended before its time; empty if it did not.
    """
    depth = len(best.seen.alpha)
    first = looks[0].seen.tau(depth)
    sheet = Sheet(
        title=title,
        mood="good" if best.seen.tau(depth) > first else "open",
        line=f"At K = {depth} tau came from {first:.2f} to {best.seen.tau(depth):.2f} tokens a "
        f"round in {best.step} steps, on {best.seen.texts} held-out texts",
        notes=(ended,) if ended else (),
        says="alpha is the chance that a token is kept when those before it are.",
        figures=(curve(looks, title),),
        grids=(
            Grid(
                caption="Every look at held-out texts",
                headings=("step", "loss", "tau", *(f"alpha {d + 1}" for d in range(depth))),
                rows=tuple(_row(look, depth) for look in looks),
            ),
        ),
        answers=True,
    )
    return html(Report(title, (), sheets=(sheet,)))


def _row(look: Look, depth: int) -> tuple[str, ...]:
    alphas = (_share(share) for share in look.seen.alpha)
    return f"{look.step}", f"{look.loss:.4f}", f"{look.seen.tau(depth):.3f}", *alphas


def _share(share: Share) -> str:
    return f"{share.value:.3f} ({share.low:.3f} to {share.high:.3f})"
