"""Ceilings: the highest speed-up that any schedule could reach on the texts of a trace.

A ceiling chooses the best K of every round with acceptances known, which no real schedule knows.
"""

from collections.abc import Sequence

import numpy as np

from spsbench.metrics.costs import STEP, Costs
from spsbench.planning.forecast.predictions import Candidate, rule_of
from spsbench.planning.forecast.rounds import coins_of, least_cost, room_along
from spsbench.store.traces import Along, DraftOf, Written

SIMULATIONS = 1600  # over all texts; a ceiling needs no three digits
FEWEST = 10  # simulations of a text


def least_seconds(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    costs: Costs,
    most: int,
) -> float:
    """Return the least seconds of all texts with K up to `most`."""
    simulations = max(FEWEST, SIMULATIONS // len(traced))
    arm, rule = candidate.draft, candidate.verifier
    by_step: dict[int, list[float]] = {}
    total = 0.0
    for text, trace in traced:
        steps = [(text.prompt_tokens + t) // STEP for t in range(len(text.q))]
        for step in set(steps) - by_step.keys():
            by_step[step] = [
                float(np.median(costs.round(arm, n, n, step * STEP, rule=rule).sum(0)))
                for n in range(most + 1)
            ]
        coins = coins_of(text, trace, rule_of(candidate, draft), most)
        cost = np.array([by_step[step] for step in steps])
        total += least_cost(coins, room_along(text, trace), cost, simulations)
    return total
