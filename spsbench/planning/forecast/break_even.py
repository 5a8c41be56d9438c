"""What would have to be otherwise for speculation to pay."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.planning.forecast.forecasts import Forecast

STEPS = 60  # of a bisection


class BreakEven(NamedTuple):
    """Of one draft and one rule, over all K."""

    c: float  # what a drafted token takes, in passes of the target over one
    needed_alpha: float | None  # with which it would be as fast as ArS; None: even 1 is too little
    needed_c: float | None  # at which it would; None: even a draft for nothing would not
    if_free: float  # the speed-up with a draft that takes no time
    if_right: float  # and with one that is always right, at its own cost


def break_even(forecasts: Sequence[Forecast], pass_seconds: float) -> BreakEven:
    """Over forecasts that differ in K alone; `pass_seconds` is a pass of the target over one token.

    Acceptance is taken as the same everywhere for `needed_alpha`: Leviathan et al. 2023,
    equation 1. What a draft may cost is from the rounds that the texts really take.
    """
    alphas: list[float | None] = []
    found: list[tuple[float, float]] = []  # what it may cost, and costs
    free, right = [1.0], [1.0]
    for each in forecasts:
        if each.drafted <= 0:
            continue
        whole = each.ms.mean * each.tau.mean  # of a round, in ms
        draft, gained = each.shares.draft * whole, each.tau.mean * each.plain_ms
        c = draft / each.drafted / (1e3 * pass_seconds)
        found.append((c * (gained - (whole - draft)) / max(draft, 1e-12), c))
        free.append(gained / (whole - draft))
        right.append((each.drafted + 1) * each.plain_ms / whole)
        alphas.append(alpha_for(whole / each.plain_ms, each.drafted))
    if not found:
        return BreakEven(0.0, None, None, 1.0, 1.0)
    needed_c, c = max(found)
    needed = min((alpha for alpha in alphas if alpha is not None), default=None)
    return BreakEven(c, needed, needed_c if needed_c > 0 else None, max(free[1:]), max(right[1:]))


def alpha_for(tau: float, k: float) -> float | None:
    """The acceptance at which K drafted tokens give `tau` a round; None: none is enough."""
    if tau >= k + 1:
        return None
    if tau <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        made = k + 1 if middle == 1 else (1 - middle ** (k + 1)) / (1 - middle)
        low, high = (middle, high) if made < tau else (low, middle)
    return high
