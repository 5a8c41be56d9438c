"""The most that any schedule could gain with one draft and one rule, on the texts of a trace."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.acceptance import Chances, acceptance_chances
from spsbench.planning.forecast.forecasts import SEEN, Candidate, Prices
from spsbench.planning.forecast.replay import Span, Turns, span_of
from spsbench.store.trace_records import Along, DraftOf, Written

# Ceilings: the best K of every round, for somebody who knows what no schedule can know.

Cost = Callable[[int, int], float]
"""(drafted tokens, position) -> seconds of that round."""

COINS = 200


class Ceiling(NamedTuple):
    """The least that a text can cost."""

    cost: float  # expected
    error: float  # standard error of that; 0 = exact


def informed(chances: Chances, span: Span, most: int, cost: Cost) -> Ceiling:
    """The least expected cost where the chances are known and K <= `most`; exact.

    A draft of fewer tokens is the beginning of a longer one, so one look at each position does.
    """
    ahead = np.zeros(span.length + 1)  # expected cost from each position on
    for at in reversed(range(span.length)):
        turns = Turns(chances, at, min(most, span.room(at)))
        after = ahead[np.minimum(_ends(turns), span.length)]  # [N + 1]
        ended = np.concatenate([[0.0], np.cumsum(turns.outcomes[:-1] * after[:-1])])
        whole = ended + turns.reached * after  # with 0 .. N tokens drafted
        ahead[at] = min(cost(n, at) + whole[n] for n in range(turns.drafted + 1))
    return Ceiling(float(ahead[0]), 0.0)


def hindsight(chances: Chances, span: Span, most: int, cost: Cost, throws: int = COINS) -> Ceiling:
    """The expected least cost where the coins are known and K <= `most`; over thrown coins.

    A position's coin is looked at once at most, since what is rejected there is filled by the
    target: one coin a position is all that a text has. A rule that does not test slot by slot has
    one for each position where a round may start.
    """
    coins = np.random.default_rng(0).random((throws, span.length + 1))
    ahead = np.zeros((throws, span.length + 1))
    for at in reversed(range(span.length)):
        turns = Turns(chances, at, min(most, span.room(at)))
        after = ahead[:, np.minimum(_ends(turns), span.length)]  # [throws, N + 1]
        run = _kept(turns, coins, at, chances.one_by_one)
        best = np.full(throws, np.inf)
        for n in range(turns.drafted + 1):
            kept = np.minimum(run, n)[:, None]
            spent = cost(n, at) + np.take_along_axis(after, kept, axis=1)[:, 0]
            best = np.minimum(best, spent)
        ahead[:, at] = best
    found = ahead[:, 0]
    error = float(found.std(ddof=1) / np.sqrt(throws)) if throws > 1 else 0.0
    return Ceiling(float(found.mean()), error)


def _ends(turns: Turns) -> NDArray[np.int64]:
    return turns.at + 1 + np.arange(turns.drafted + 1)


def _kept(turns: Turns, coins: Floats, at: int, one_by_one: bool) -> NDArray[np.int64]:
    """[throws] tokens kept in a round of these turns."""
    n = turns.drafted
    if one_by_one:
        slots = np.divide(
            turns.kept, turns.reached[:n], out=np.zeros(n), where=turns.reached[:n] > 0
        )
        own = coins[:, at : at + n]
        passed = own < slots[: own.shape[1]]
        return np.asarray(np.cumprod(passed, axis=1).sum(axis=1))
    return np.asarray((coins[:, at, None] < turns.kept).sum(axis=1))


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

        coins = acceptance_chances(text, along, rule)  # type: ignore[arg-type]
        span = span_of(text, along)
        seen += hindsight(coins, span, most, cost, throws).cost
        known += informed(coins, span, most, cost).cost
        plain += float(np.median(prices.of_plain(text)))
    return Ceilings(plain / seen, plain / known)


def above(found: Ceilings, reached: float) -> Ceilings:
    """Ceilings that are not below what a candidate reaches on the same texts.

    What is below it stands on thrown coins, and on costs that do not rise with K.
    """
    return Ceilings(max(found.hindsight, reached), max(found.informed, reached))
