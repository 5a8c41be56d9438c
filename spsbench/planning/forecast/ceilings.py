"""The most that any schedule could gain with one draft and one rule, on the texts of a trace."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.planning.forecast.candidates import SEEN, Candidate
from spsbench.planning.forecast.oracle import hindsight, informed
from spsbench.planning.forecast.pricing import Prices
from spsbench.planning.forecast.traces import Along, DraftOf, Drawn, Written, chances

THROWS = 1600  # of the coins of all texts; a ceiling is no figure to quote to three digits
FEWEST = 10  # of the coins of a text


class Ceilings(NamedTuple):
    """Speed-ups over ArS."""

    hindsight: float  # the best K of every round, by somebody who saw the coins
    informed: float  # by somebody who knows every chance beforehand, but not the coins


def ceilings(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    prices: Prices,
    most: int,
) -> Ceilings:
    """Over the texts that forecasts are made of, with K up to `most`."""
    seen = known = plain = 0.0
    throws = max(FEWEST, THROWS // len(traced))
    rule = candidate.verifier if draft.sampled else SEEN
    for text, along in traced:

        def cost(drafted: int, at: int, begin: int = text.prompt_tokens) -> float:
            given = candidate.draft, candidate.verifier
            return prices.seconds(*given, drafted, drafted, begin + at)

        coins = chances(text, along, rule)  # type: ignore[arg-type]
        span = text.span(along.reach if isinstance(along, Drawn) else None)
        seen += hindsight(coins, span, most, cost, throws).cost
        known += informed(coins, span, most, cost).cost
        plain += float(np.median(prices.of_plain(text)))
    return Ceilings(plain / seen, plain / known)


def above(found: Ceilings, reached: float) -> Ceilings:
    """Ceilings that are not below what a candidate reaches on the same texts.

    What is below it stands on thrown coins, and on costs that do not rise with K.
    """
    return Ceilings(max(found.hindsight, reached), max(found.informed, reached))
