"""What the figures of a generation suggest to do: a line each, none where all is well."""

from collections.abc import Iterator

from spsbench.api.comparison import Comparison
from spsbench.api.text import Arm

ENOUGH = 16  # rounds from which it says something that nothing was found


def advice(arm: Arm, comparison: Comparison | None) -> Iterator[str]:
    """For the settings of `arm`."""
    figures = arm.figures
    if arm.by_rule and arm.cell.k != 0 and figures.drafted == 0 and figures.rounds >= ENOUGH:
        yield (
            f"prompt lookup found nothing to draft in {figures.rounds} rounds, and gained nothing: "
            "it is for texts that repeat their prompt. Name a draft model with --draft"
        )
    gained = comparison.speedup if comparison else None
    if gained is not None and gained.high is not None and gained.high < 1:
        yield (
            f"slower than without a draft ({gained.mean:.2f}x): the draft costs more than it "
            "saves. Try a smaller --k or a smaller draft model, or --k 0 for none"
        )
