"""One prompt answered: the text as it comes, or one JSON object; then the figures."""

from typing import Any

from spsbench.api.pair import Pair
from spsbench.api.text import Piece, arm
from spsbench.cli.generate.advice import advice
from spsbench.cli.generate.payload import payload
from spsbench.cli.generate.screen import Screen
from spsbench.cli.generate.stats import show_stats
from spsbench.cli.notes import say
from spsbench.cli.safe import write


def answer(
    pair: Pair,
    prompt: str,
    screen: Screen,
    *,
    compared: bool,
    json: bool,
    stats: bool,
    **how: Any,
) -> None:
    """Generate from `prompt` and report."""
    show = nowhere if json else screen.show
    comparison = None
    try:
        if compared:
            comparison = pair.compare(prompt, show=show, **how)
            made = comparison.sps
        else:
            generation = pair.generation(prompt, **how)
            for update in generation:
                show(update.pieces)
            made = arm(generation)
    finally:
        screen.end()
    if json:
        digests = pair.digests()
        told = payload(made, pair.engines(), comparison, prompt=prompt, digests=digests)
        write(told + "\n")
        return
    if stats:
        show_stats({"SpS": made} if comparison is None else {"SpS": made, "ArS": comparison.ars})
        for name, engine in pair.engines().items():
            say(f"{name} engine: {engine}")
    for line in comparison.lines() if comparison else ():
        say(line)
    if stats or comparison:
        for line in advice(made, comparison):
            say(f"advice: {line}")


def nowhere(pieces: list[Piece]) -> None:
    """Show nothing."""
