"""One prompt answered: the text as it comes, or one JSON object; then the figures."""

from collections.abc import Sequence

from spsbench.cli.arms import run, run_both
from spsbench.cli.compare import compare, lines
from spsbench.cli.notes import say
from spsbench.cli.payload import payload
from spsbench.cli.safe import write
from spsbench.cli.screen import Screen
from spsbench.cli.session import Session
from spsbench.cli.stats import show_stats
from spsbench.text import Piece


def once(
    session: Session,
    prompt: Sequence[int],
    screen: Screen,
    *,
    compared: bool,
    json: bool,
    stats: bool,
) -> None:
    """Generate from `prompt` and report."""
    show = nowhere if json else screen.show
    comparison = None
    try:
        if compared:
            ars, arm = run_both(session, prompt, show)
        else:
            arm = run(session, prompt, show)
    finally:
        screen.end()
    if compared:
        comparison = compare(session, prompt, ars, arm)
    if json:
        write(payload(arm, session.engines(), comparison) + "\n")
        return
    if stats:
        show_stats({"SpS": arm} if comparison is None else {"SpS": arm, "ArS": comparison.ars})
        for name, engine in session.engines().items():
            say(f"{name} engine: {engine}")
    for line in lines(comparison) if comparison else ():
        say(line)


def nowhere(pieces: list[Piece]) -> None:
    """Show nothing."""
