"""The recommendation: whether to speculate, with which candidate, and why, in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.rates import alpha_for
from spsbench.planning.forecast.predictions import Prediction
from spsbench.settings.method import Method
from spsbench.tables import read_table

NOTICED = 1.02  # a smaller speed-up is not noticeable
HALF = 0.5
FREE = 0.01  # a draft below it, in passes of the target a token, takes next to nothing
REASONS = read_table(__file__, "reasons.toml")
UNSURE: str = REASONS["unsure"]


class Decision(Enum):
    """The recommendation: speculate, do not, or undecided."""

    SPECULATE = "speculate"
    NEITHER = "no difference"
    UNDECIDED = "not decided"
    DO_NOT = "do not speculate"


NO_GAIN = (Decision.DO_NOT, Decision.NEITHER)


class Measured(NamedTuple):
    """A candidate's figures in real rounds on held-back prompts."""

    speedup: Estimate
    tau: Estimate
    ms: Estimate
    predicted_tau: float | None = None  # by traces of the same held-back prompts

    @property
    def doubt(self) -> str:
        """Return why the speed-up decides nothing: above tau, or one prompt; "" if it may.

        A round takes at least as long as a plain one, so that tau bounds the speed-up.
        """
        if self.speedup.mean > self.tau.mean:
            return f"{self.speedup.mean:.2f}x at tau {self.tau.mean:.2f}, which bounds it"
        return "one prompt alone" if self.speedup.n == 1 else ""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer of a plan."""

    verdict: Decision
    best: Method
    reason: str  # in plain words
    numbers: str

    def __str__(self) -> str:
        return f"{self.reason} {self.numbers}"


class BreakEven(NamedTuple):
    """Break-even values of one draft and one rule, over all K."""

    c: float = 0.0  # time of a drafted token, in passes of the target over one token
    needed_alpha: float | None = None  # alpha at which it equals ArS; None: even 1 is too low
    needed_c: float | None = None  # c at which it equals ArS; None: even a free draft is too slow
    if_free: float = 1.0  # the speed-up with a draft that takes no time
    if_right: float = 1.0  # the speed-up with a draft that is always accepted, at its own cost


def break_even(predictions: Sequence[Prediction], pass_seconds: float) -> BreakEven:
    """Return the break-even values of predictions that differ in K alone; defaults if none drafts.

    `pass_seconds` is the time of a pass of the target over one token. `needed_alpha`, the least
    over K, assumes a constant acceptance (Leviathan et al. 2023, equation 1); `needed_c`, the
    greatest, is from expected rounds, and `c` is that of the same K.
    """
    alphas: list[float] = []
    costs: list[tuple[float, float]] = []  # (affordable cost, cost)
    free, right = [], []
    for prediction in predictions:
        drafted, plain_ms, whole = prediction.drafted, prediction.plain_ms, prediction.round_ms
        if drafted <= 0:
            continue
        draft, gained = prediction.shares["draft"] * whole, prediction.tau.mean * plain_ms
        c = draft / drafted / (1e3 * pass_seconds)
        costs.append((c * (gained - (whole - draft)) / max(draft, 1e-12), c))
        free.append(gained / (whole - draft))
        right.append((drafted + 1) * plain_ms / whole)
        if (alpha := alpha_for(whole / plain_ms, drafted)) is not None:
            alphas.append(alpha)
    if not costs:
        return BreakEven()
    needed_c, c = max(costs)
    needed_alpha = min(alphas, default=None)
    return BreakEven(c, needed_alpha, needed_c if needed_c > 0 else None, max(free), max(right))


def recommend(
    method: Method,
    best: Prediction | None,
    measured: Measured | None,
    needs: BreakEven,
    candidates: int,
    doubt: str = "",
) -> Recommendation:
    """Return the answer for `method` from its measurement; a prediction alone is undecided.

    `best` is the prediction of `method`; None: no text tells what to expect of it. `doubt` names
    contradictions in the costs behind it. `measured` has the figures of `method` in real rounds;
    with `best`, None or doubtful ones leave the answer undecided. Without an interval they decide
    only on a quiet machine, without `doubt`, and where `best` has the same verdict. `needs` has the
    break-even values of the same draft and rule; `candidates` is the number of candidates.
    ValueError: neither a prediction nor a measurement.
    """
    among = "it is" if candidates == 1 else f"the best of {candidates} candidates is"
    expected = Decision.UNDECIDED if best is None else decide(best.speedup)
    if best is not None and (measured is None or measured.doubt):
        verdict, leaning = Decision.UNDECIDED, expected
        maybe = expected in (Decision.SPECULATE, Decision.UNDECIDED)
        reason = "It may pay" if maybe else "It hardly pays by the prediction"
        reason += ", but no real rounds were measured."
        fate = ", and was not measured."
        if measured is not None:
            reason, fate = UNSURE, f"; what was measured does not count: {measured.doubt}."
        elif doubt:
            reason = f"The costs contradict each other: {doubt}."
        numbers = (
            f"Not decided: {among} predicted to be {format_estimate(best.speedup)} ({method}){fate}"
        )
    elif measured is None:
        raise ValueError(f"{method}: expected a prediction or a measurement")
    else:
        gained, verdict = measured.speedup, decide(measured.speedup)
        if gained.low is None and (doubt or gained.loaded or verdict is not expected):
            verdict = Decision.UNDECIDED
        leaning, reason = verdict, why(verdict, best, needs)
        figures = f"{format_estimate(gained)} measured, " + (
            "which no text predicts" if best is None else f"{best.speedup.mean:.2f}x predicted"
        )
        numbers = {
            Decision.SPECULATE: f"Speculate with {method}: {figures}.",
            Decision.UNDECIDED: f"Not decided: {method} is {figures}.",
        }.get(verdict, f"Do not speculate: {among} {figures} ({method}).")
    if best is not None and leaning in NO_GAIN:
        numbers += f" {lacks(best, needs)}"
    return Recommendation(verdict=verdict, best=method, reason=reason, numbers=numbers)


def decide(gained: Estimate) -> Decision:
    """Return the verdict on a speed-up: by its interval, or by its mean as both ends.

    SPECULATE: noticeable, and all above 1. DO_NOT: mean below 1, or no end noticeable. Between:
    NEITHER where the mean is not noticeable, else UNDECIDED.
    """
    low = gained.mean if gained.low is None else gained.low
    high = gained.mean if gained.high is None else gained.high
    if gained.mean >= NOTICED and low > 1:
        return Decision.SPECULATE
    if gained.mean < 1 or high < NOTICED:
        return Decision.DO_NOT
    return Decision.NEITHER if gained.mean < NOTICED else Decision.UNDECIDED


def format_estimate(estimate: Estimate, unit: str = "x") -> str:
    """Format a figure with its interval: `1.71x (1.64 to 1.79)`."""
    value = f"{estimate.mean:.2f}{unit}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({estimate.low:.2f} to {estimate.high:.2f})"


def why(verdict: Decision, best: Prediction | None, needs: BreakEven) -> str:
    """Return the reason for a verdict in one sentence without formulas: the first that holds.

    `best` None (no prediction): whether real rounds were faster.
    """
    if verdict is Decision.UNDECIDED:
        return UNSURE
    price = "next to nothing" if needs.c < FREE else f"{needs.c:.2g} of a target step each"
    if best is None:
        reasons = [(verdict is Decision.SPECULATE, "fastest"), (True, "none_faster")]
    else:
        reasons = [
            (verdict is Decision.SPECULATE, "pays"),
            (verdict is Decision.NEITHER, "no_difference"),
            (needs.c >= 1, "slower_than_target"),
            (best.drafted < HALF and best.tau.mean < 1 + HALF / 2, "finds_nothing"),
            (needs.if_free > NOTICED and needs.c >= FREE, "too_slow"),
            (needs.if_right > NOTICED, "too_often_wrong"),
            (True, "wide_passes_slow"),
        ]
    reason: str = REASONS[next(name for holds, name in reasons if holds)]
    return reason.format(right=0.0 if best is None else best.right, price=price)


def lacks(best: Prediction, needs: BreakEven) -> str:
    """Return a sentence: c and alpha, then better ones at which it equals ArS, or that none do."""
    alpha, wants = best.right, []
    has = f"The draft takes {needs.c:.2f} of a target pass a token and alpha is {alpha:.2f}"
    if needs.needed_alpha is not None and needs.needed_alpha > alpha:
        wants.append(f"alpha {needs.needed_alpha:.2f} at this cost")
    if needs.needed_c is not None and needs.needed_c < needs.c:
        wants.append(f"a draft under {needs.needed_c:.2f}")
    if not wants:
        return f"{has}; no acceptance and no cheaper draft would make up for the rest of a round."
    return f"{has}; it would need {', or '.join(wants)}."
