"""Break-even points: the acceptance and the draft cost at which speculation pays."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.metrics.rates import alpha_for
from spsbench.planning.forecast.predictions import Prediction


class BreakEven(NamedTuple):
    """Break-even values of one draft and one rule, over all K."""

    c: float  # time of a drafted token, in passes of the target over one token
    needed_alpha: float | None  # alpha at which SpS is as fast as ArS; None: even 1 is too low
    needed_c: float | None  # c at which SpS is as fast as ArS; None: even a free draft is too slow
    if_free: float  # the speed-up with a draft that takes no time
    if_right: float  # the speed-up with a draft that is always accepted, at its own cost


def break_even(predictions: Sequence[Prediction], pass_seconds: float) -> BreakEven:
    """Return the break-even values of predictions that differ in K alone.

    `pass_seconds` is the time of a pass of the target over one token. `needed_alpha` assumes a
    constant acceptance (Leviathan et al. 2023, equation 1); `needed_c` is from expected rounds.
    """
    alphas: list[float | None] = []
    draft_costs: list[tuple[float, float]] = []  # (affordable cost, cost)
    free, right = [1.0], [1.0]
    for prediction in predictions:
        drafted, plain_ms = prediction.drafted, prediction.plain_ms
        if drafted <= 0:
            continue
        whole = prediction.ms.mean * prediction.tau.mean  # of a round, in ms
        draft, gained = prediction.shares.draft * whole, prediction.tau.mean * plain_ms
        c = draft / drafted / (1e3 * pass_seconds)
        draft_costs.append((c * (gained - (whole - draft)) / max(draft, 1e-12), c))
        free.append(gained / (whole - draft))
        right.append((drafted + 1) * plain_ms / whole)
        alphas.append(alpha_for(whole / plain_ms, drafted))
    if not draft_costs:
        return BreakEven(0.0, None, None, 1.0, 1.0)
    needed_c, c = max(draft_costs)
    needed = min((alpha for alpha in alphas if alpha is not None), default=None)
    return BreakEven(c, needed, needed_c if needed_c > 0 else None, max(free[1:]), max(right[1:]))
