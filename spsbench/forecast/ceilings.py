"""The most that any schedule could gain with one draft and one rule, on the texts of a trace."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.forecast.candidates import SEEN, Candidate
from spsbench.forecast.oracle import hindsight, informed
from spsbench.forecast.pricing import Prices
from spsbench.forecast.traces import Along, DraftOf, Drawn, Written, chances

THROWS = 50  # of the coins of a text
MOST = 32  # texts; a ceiling is no figure to quote to three digits


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
    """Over the texts, or `MOST` of them, with K up to `most`."""
    seen = known = plain = 0.0
    traced = traced[:: -(-len(traced) // MOST)]
    rule = candidate.verifier if draft.sampled else SEEN
    for text, along in traced:

        def cost(drafted: int, at: int, begin: int = text.prompt_tokens) -> float:
            given = candidate.draft, candidate.verifier
            if drafted:
                return prices.seconds(*given, drafted, drafted, begin + at)
            plain = prices.seconds(*given, 0, 0, begin + at)
            return min(plain, prices.seconds(*given, 1, 0, begin + at))  # asked in vain

        coins = chances(text, along, rule)  # type: ignore[arg-type]
        span = text.span(along.reach if isinstance(along, Drawn) else None)
        seen += hindsight(coins, span, most, cost, THROWS).cost
        known += informed(coins, span, most, cost).cost
        plain += float(np.median(prices.of_plain(text)))
    return Ceilings(plain / seen, plain / known)
