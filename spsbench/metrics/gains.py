"""A cell against its baseline, the K = 0 cell: speed-up, costs, and the speed-up they predict."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Estimate, Floats, Jackknife
from spsbench.metrics.rates import RATES
from spsbench.metrics.sums import AT, Tally, numbered, quietly
from spsbench.settings.cell import Cell


class Gains(NamedTuple):
    """Figures over the generations, by (sample, repeat), that both cells have timed."""

    speedup: Estimate | None = None  # mean token time of the baseline over the cell's
    cost_ratio: Estimate | None = None  # c: draft pass over the target's pass at K = 0
    verify_ratio: Estimate | None = None  # v(K): target pass at K over that at K = 0
    predicted_speedup: Estimate | None = None  # from alpha, what was drafted, and its costs


def baseline(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The first K = 0 cell that differs from `cell` only in how it drafts; None without one."""
    return next((other for other in cells if other.k == 0 and other.same_work(cell)), None)


def gains(base: Tally, own: Tally, k: int | None, *, quiet: bool = False) -> Gains:
    """Ratios of paired totals, so that a prompt counts as much in one arm as in the other.

    The prediction is Leviathan et al. 2023, theorem 3.8, over the rounds as they were drafted. A
    round of N drafted tokens is expected to emit sum_{i=0..N} alpha^i, which takes acceptances as
    independent. N is below K near the end of a text, and often 0 for a drafter by rule. A round
    costs what drafting and the target's pass took, in passes of the baseline's target: c N + v(N).
    No round emits more than the measured tau, or costs less than one pass, so the prediction never
    exceeds tau.

    Arms of one prompt follow each other and share what else the machine does, so that their ratio
    holds under load too, with more variation; with `quiet` only pairs are taken that had none.
    """
    base_rows, own_rows = base.rows, own.rows
    if quiet:
        base_rows, own_rows = quietly(base_rows), quietly(own_rows)
    keys = [
        key
        for key, row in own.keys.items()
        if own_rows[row, AT["started"]]
        and key in base.keys
        and base_rows[base.keys[key], AT["started"]]
    ]
    if not keys:
        return Gains()
    width = len(AT)
    ours = own_rows[[own.keys[key] for key in keys], :width]
    theirs = base_rows[[base.keys[key] for key in keys], :width]
    reached = own_rows[[own.keys[key] for key in keys], own_rows.shape[1] - own.k :]
    rows = np.hstack([ours, theirs, reached])
    paired = Jackknife(rows, numbered([sample for sample, _ in keys]))

    token_time, alpha, tau = (
        RATES[name] for name in ("mean_token_time_ms", "alpha", "block_efficiency")
    )
    target_pass, draft_pass = RATES["target_pass_ms"], RATES["draft_pass_ms"]

    def speedup(sums: Floats) -> Floats:
        return token_time(sums[..., width:]) / token_time(sums)

    def cost_ratio(sums: Floats) -> Floats:
        return draft_pass(sums) / target_pass(sums[..., width:])

    def verify_ratio(sums: Floats) -> Floats:
        return target_pass(sums) / target_pass(sums[..., width:])

    def predicted(sums: Floats) -> Floats:
        shares = sums[..., 2 * width :] / sums[..., AT["rounds"], None]  # of rounds, by depth
        depth = sums[..., AT["depth"]] / sums[..., AT["rounds"]]
        drafting = np.where(depth > 0, cost_ratio(sums) * depth, 0.0)
        tokens = np.minimum(expected_tokens(alpha(sums), shares), tau(sums))
        return np.asarray(tokens / np.maximum(drafting + verify_ratio(sums), 1.0))

    gained, grown = (paired.estimate(ratio, AT["started"]) for ratio in (speedup, verify_ratio))
    if base is own:  # 1, whatever the samples
        gained, grown = gained and gained.certain, grown and grown.certain
    return Gains(
        gained,
        paired.estimate(cost_ratio, AT["timed_depth"]),
        grown,
        paired.estimate(predicted, AT["overlap_tested"]) if k else None,
    )


def expected_tokens(alpha: Floats, shares: Floats) -> Floats:
    """Tokens of a round, expected where each drafted token is kept with chance `alpha`.

    Leviathan et al. 2023, equation 1: (1 - alpha^(K+1)) / (1 - alpha) where all rounds draft K.

    Args:
        shares: [..., K] of all rounds those that drafted at least 1, 2, ... K tokens.
    """
    powers = np.asarray(alpha)[..., None] ** np.arange(1, shares.shape[-1] + 1)
    return np.asarray(1 + (shares * powers).sum(-1))
