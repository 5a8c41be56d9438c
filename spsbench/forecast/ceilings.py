"""The most that any schedule could gain with one draft and one rule, on the texts of a trace."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.forecast.candidates import SEEN, Candidate
from spsbench.forecast.oracle import hindsight, informed
from spsbench.forecast.pricing import Prices
from spsbench.forecast.traces import Along, DraftOf, Drawn, Written, chances


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
    throws: int = 50,
) -> Ceilings:
    """Over all texts, with K up to `most`."""
    seen = known = plain = 0.0
    rule = candidate.verifier if draft.sampled else SEEN
    for text, along in traced:

        def cost(drafted: int, at: int, begin: int = text.prompt_tokens) -> float:
            given = candidate.draft, candidate.verifier, drafted, drafted
            return prices.seconds(*given, begin + at)

        coins = chances(text, along, rule)  # type: ignore[arg-type]
        span = text.span(along.reach if isinstance(along, Drawn) else None)
        seen += hindsight(coins, span, most, cost, throws).cost
        known += informed(coins, span, most, cost).cost
        plain += float(np.median(prices.of_plain(text)))
    return Ceilings(plain / seen, plain / known)
