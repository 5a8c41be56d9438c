"""Ceilings: the best K of every round, for somebody who knows what no schedule can know.

`hindsight` sees the coins themselves before they fall, and takes in every round the K with which
the whole text is cheapest: no schedule can be faster on that text and those coins. `informed` sees
the chances along the text but not the coins: what a perfect predictor of acceptance would gain.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.chances import Chances
from spsbench.planning.forecast.replay import Span, Turns

Cost = Callable[[int, int], float]
"""(drafted tokens, position) -> seconds of that round."""

THROWS = 200


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


def hindsight(chances: Chances, span: Span, most: int, cost: Cost, throws: int = THROWS) -> Ceiling:
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
