"""The answer in words: whether to speculate, with what, and why; the reason first."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.planning.forecast.break_even import BreakEven
from spsbench.planning.forecast.forecasts import Forecast

NOTICED = 1.02  # a gain below this is none that anybody would notice
HALF = 0.5
UNSURE = (
    "It may pay, but the figures vary too much, or are too few, to say so: more prompts (--limit, "
    "--held-back) or a quieter machine would tell."
)


class Verdict(Enum):
    """What to do."""

    SPECULATE = "speculate"
    NEITHER = "no difference"
    UNDECIDED = "not decided"
    DO_NOT = "do not speculate"


class Measured(NamedTuple):
    """A candidate in real rounds on held-back prompts."""

    speedup: Estimate
    tau: Estimate
    ms: Estimate
    loaded: bool = False  # other work kept the machine busy meanwhile
    foretold: float | None = None  # tau by traces of the very prompts that it was measured on


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to tell."""

    verdict: Verdict
    best: str  # the candidate
    reason: str  # for people who never read a paper
    numbers: str

    def __str__(self) -> str:
        return f"{self.reason} {self.numbers}"


def answer(
    best: Forecast,
    measured: Measured | None,
    needs: BreakEven,
    candidates: int,
    doubt: str = "",
) -> Answer:
    """Answer for the best candidate, by what was measured: a prediction decides nothing.

    Without an interval a measurement decides only on a quiet machine, and where the prediction is
    of the same verdict.

    Args:
        candidates: how many there were.
        needs: of the same draft and rule.
        doubt: in what the costs behind the prediction contradict each other.
    """
    foretold = decided(best.speedup)
    if measured is None:
        return unmeasured(best, foretold, needs, candidates, doubt)
    verdict = decided(measured.speedup)
    doubtful = bool(doubt) or measured.loaded or verdict is not foretold
    if measured.speedup.low is None and doubtful:
        verdict = Verdict.UNDECIDED
    reason = why(verdict, best, needs)
    if verdict is Verdict.SPECULATE:
        numbers = f"Speculate with {best.candidate}: {told(best, measured)}."
    elif verdict is Verdict.UNDECIDED:
        numbers = f"Not decided: {best.candidate} is {told(best, measured)}."
    else:
        numbers = (
            f"Do not speculate: {among(candidates)} {told(best, measured)} ({best.candidate}). "
            f"{lacks(best, needs)}"
        )
    return Answer(verdict=verdict, best=str(best.candidate), reason=reason, numbers=numbers)


def unmeasured(
    best: Forecast, foretold: Verdict, needs: BreakEven, candidates: int, doubt: str
) -> Answer:
    """Answer for a candidate that is only predicted."""
    if doubt:
        reason = f"The costs contradict each other: {doubt}."
    elif foretold in (Verdict.SPECULATE, Verdict.UNDECIDED):
        reason = "It may pay, but no real rounds were measured."
    else:
        reason = "It hardly pays by the prediction, but no real rounds were measured."
    numbers = (
        f"Not decided: {among(candidates)} predicted to be {factor(best.speedup)} "
        f"({best.candidate}), and was not measured."
    )
    if foretold is Verdict.DO_NOT:
        numbers += f" {lacks(best, needs)}"
    return Answer(
        verdict=Verdict.UNDECIDED, best=str(best.candidate), reason=reason, numbers=numbers
    )


def among(candidates: int) -> str:
    """`it is`, `the best of 14 candidates is`."""
    return "it is" if candidates == 1 else f"the best of {candidates} candidates is"


def untold(name: str, measured: Measured) -> Answer:
    """Answer for a candidate that was measured without a prediction."""
    verdict = decided(measured.speedup)
    told = f"{name}: {factor(measured.speedup)} measured; no text tells what to expect of it"
    if measured.speedup.low is None or verdict is Verdict.UNDECIDED:
        verdict, reason, numbers = Verdict.UNDECIDED, UNSURE, f"Not decided: {told}."
    elif verdict is Verdict.SPECULATE:
        reason, numbers = "It was the fastest in real rounds.", f"Speculate with {told}."
    else:
        reason = "Nothing that was measured is faster than plain sampling by a margin that matters."
        numbers = f"Do not speculate: the best is {told}."
    return Answer(verdict=verdict, best=name, reason=reason, numbers=numbers)


def decided(gained: Estimate) -> Verdict:
    """By the interval where there is one."""
    low = gained.mean if gained.low is None else gained.low
    high = gained.mean if gained.high is None else gained.high
    if gained.mean >= NOTICED and low > 1:
        return Verdict.SPECULATE
    if gained.mean < 1 or high < NOTICED:
        return Verdict.DO_NOT
    return Verdict.NEITHER if gained.mean < NOTICED else Verdict.UNDECIDED


def told(best: Forecast, measured: Measured) -> str:
    """`1.71x (1.64 to 1.79) measured, 1.74x predicted`."""
    return f"{factor(measured.speedup)} measured, {best.speedup.mean:.2f}x predicted"


def factor(estimate: Estimate) -> str:
    """`1.71x (1.64 to 1.79)`."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.2f}x"
    return f"{estimate.mean:.2f}x ({estimate.low:.2f} to {estimate.high:.2f})"


def why(verdict: Verdict, best: Forecast, needs: BreakEven) -> str:
    """One sentence without a letter of a formula."""
    by_rule = needs.c < 0.01
    if verdict is Verdict.SPECULATE:
        price = "for next to nothing" if by_rule else f"for {share(needs.c)} of a target step each"
        return (
            f"The draft is right about {best.right:.0%} of the time {price}, so checking several "
            "of its guesses at once beats making every token alone."
        )
    if verdict is Verdict.NEITHER:
        return "What the draft saves is about what it costs; plain sampling is simpler."
    if verdict is Verdict.UNDECIDED:
        return UNSURE
    if needs.c >= 1:
        return "The draft is slower than the target itself, so it can never save time."
    if best.drafted < HALF and best.tau.mean < 1 + HALF / 2:
        return "The draft hardly ever finds anything to propose, and looking for it costs time."
    if needs.if_free > NOTICED and not by_rule:
        return "The draft is too slow for how often it is right."
    if needs.if_right > NOTICED:
        return "The draft is wrong too often: most of its guesses are thrown away."
    return (
        "Checking several tokens at once takes this machine almost as long as making them one by "
        "one, so even a draft that is always right would gain nothing."
    )


def lacks(best: Forecast, needs: BreakEven) -> str:
    """The numbers behind it: what it has, and what it would need."""
    alpha = best.right
    has = f"The draft takes {needs.c:.2f} of a target pass a token and alpha is {alpha:.2f}"
    wants = []
    if needs.needed_alpha is not None and needs.needed_alpha > alpha:
        wants.append(f"alpha {needs.needed_alpha:.2f} at this cost")
    if needs.needed_c is not None and needs.needed_c < needs.c:
        wants.append(f"a draft under {needs.needed_c:.2f}")
    if not wants:
        return f"{has}; no acceptance and no cheaper draft would make up for the rest of a round."
    return f"{has}; it would need {', or '.join(wants)}."


def share(c: float) -> str:
    """`a fifth`, `0.41`."""
    words = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 10: "a tenth"}
    for n, word in words.items():
        if abs(c * n - 1) < 0.1:
            return word
    return f"{c:.2g}"


def best_of(forecasts: Sequence[Forecast]) -> Forecast:
    """Of the greatest predicted speed-up."""
    return max(forecasts, key=lambda each: each.speedup.mean)
