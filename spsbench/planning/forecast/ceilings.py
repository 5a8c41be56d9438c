"""Ceilings: the highest speed-up that any schedule could reach on the texts of a trace.

A ceiling chooses the best K of every round with knowledge that no real schedule has.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.acceptance_chances import Chances, acceptance_chances
from spsbench.planning.forecast.forecasts import SEEN, Candidate, RoundTimes
from spsbench.planning.forecast.replay import Span, Turns, span_of
from spsbench.store.trace_records import Along, DraftOf, Written

Cost = Callable[[int, int], float]
"""The seconds of a round: (drafted tokens, position) -> seconds."""

COINS = 200


class Ceiling(NamedTuple):
    """The least cost of a text."""

    cost: float  # expected
    error: float  # standard error of the cost; 0 = exact


def informed(chances: Chances, span: Span, most: int, cost: Cost) -> Ceiling:
    """Return the least expected cost where the chances are known and K <= `most`; exact.

    A shorter draft is a prefix of a longer draft, so one look at each position suffices.
    """
    ahead = np.zeros(span.length + 1)  # expected cost from each position on
    for at in reversed(range(span.length)):
        turns = Turns(chances, at, min(most, span.room(at)))
        after = ahead[np.minimum(_ends(turns), span.length)]  # [N + 1]
        ended = np.concatenate([[0.0], np.cumsum(turns.outcomes[:-1] * after[:-1])])
        whole = ended + turns.reached * after  # with 0 .. N tokens drafted
        ahead[at] = min(cost(n, at) + whole[n] for n in range(turns.drafted + 1))
    return Ceiling(float(ahead[0]), 0.0)


def hindsight(
    chances: Chances, span: Span, most: int, cost: Cost, simulations: int = COINS
) -> Ceiling:
    """Return the expected least cost with acceptances known and K <= `most`, by simulation.

    Each position's acceptance is sampled at most once, since the target fills a rejected position.
    A rule that does not test slot by slot has one sample for each possible start of a round.
    """
    coins = np.random.default_rng(0).random((simulations, span.length + 1))
    ahead = np.zeros((simulations, span.length + 1))
    for at in reversed(range(span.length)):
        turns = Turns(chances, at, min(most, span.room(at)))
        after = ahead[:, np.minimum(_ends(turns), span.length)]  # [throws, N + 1]
        run = _kept(turns, coins, at, chances.one_by_one)
        best = np.full(simulations, np.inf)
        for n in range(turns.drafted + 1):
            kept = np.minimum(run, n)[:, None]
            spent = cost(n, at) + np.take_along_axis(after, kept, axis=1)[:, 0]
            best = np.minimum(best, spent)
        ahead[:, at] = best
    least_costs = ahead[:, 0]
    error = float(least_costs.std(ddof=1) / np.sqrt(simulations)) if simulations > 1 else 0.0
    return Ceiling(float(least_costs.mean()), error)


def _ends(turns: Turns) -> NDArray[np.int64]:
    return turns.at + 1 + np.arange(turns.drafted + 1)


def _kept(turns: Turns, coins: Floats, at: int, one_by_one: bool) -> NDArray[np.int64]:
    """Return [throws] the number of tokens kept in a round of these turns."""
    n = turns.drafted
    if one_by_one:
        slots = np.divide(
            turns.kept, turns.reached[:n], out=np.zeros(n), where=turns.reached[:n] > 0
        )
        draws = coins[:, at : at + n]
        passed = draws < slots[: draws.shape[1]]
        return np.asarray(np.cumprod(passed, axis=1).sum(axis=1))
    return np.asarray((coins[:, at, None] < turns.kept).sum(axis=1))


SIMULATIONS = 1600  # simulations over all texts; a ceiling needs no three digits
FEWEST = 10  # simulations of a text


class Ceilings(NamedTuple):
    """Ceilings as speed-ups over ArS."""

    hindsight: float  # the best K of every round, with acceptances known
    informed: float  # the best K of every round, with chances known but not acceptances


def ceilings(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    round_times: RoundTimes,
    most: int,
) -> Ceilings:
    """Return the ceilings over the texts of the forecasts, with K up to `most`."""
    seen = foreseen = plain = 0.0
    simulations = max(FEWEST, SIMULATIONS // len(traced))
    rule = candidate.verifier if draft.sampled else SEEN
    for text, along in traced:

        def cost(drafted: int, at: int, begin: int = text.prompt_tokens) -> float:
            method = candidate.draft, candidate.verifier
            return round_times.seconds(*method, drafted, drafted, begin + at)

        coins = acceptance_chances(text, along, rule)  # type: ignore[arg-type]
        span = span_of(text, along)
        seen += hindsight(coins, span, most, cost, simulations).cost
        foreseen += informed(coins, span, most, cost).cost
        plain += float(np.median(round_times.of_plain(text)))
    return Ceilings(plain / seen, plain / foreseen)


def above(bounds: Ceilings, reached: float) -> Ceilings:
    """Return ceilings raised to what a candidate reaches on the same texts.

    Simulation noise, and costs that do not rise with K, can put a ceiling below a candidate.
    """
    return Ceilings(max(bounds.hindsight, reached), max(bounds.informed, reached))
