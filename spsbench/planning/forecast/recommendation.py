"""The recommendation: all forecasts and ceilings together, and the answer with its reason."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np

from spsbench.metrics.costs import Costs
from spsbench.metrics.intervals import FEWEST, Estimate
from spsbench.planning.forecast.break_even import BreakEven, break_even
from spsbench.planning.forecast.ceilings import least_seconds
from spsbench.planning.forecast.predictions import (
    Candidate,
    Prediction,
    lacking,
    predict,
    selection_factor,
)
from spsbench.store.traces import Along, DraftOf, Written

Key = TypeVar("Key")

NOTICED = 1.02  # a smaller speed-up is not noticeable
HALF = 0.5
UNSURE = (
    "It may pay, but the figures vary too much, or are too few, to say so: more prompts (`limit`, "
    "`held_back`) or a quieter machine would tell."
)


class Verdict(Enum):
    """The recommendation: speculate, do not, or undecided."""

    SPECULATE = "speculate"
    NEITHER = "no difference"
    UNDECIDED = "not decided"
    DO_NOT = "do not speculate"


class Measured(NamedTuple):
    """A candidate's figures in real rounds on held-back prompts."""

    speedup: Estimate
    tau: Estimate
    ms: Estimate
    loaded: bool = False  # other processes kept the machine busy meanwhile
    foretold: float | None = None  # tau predicted by traces of the same held-back prompts

    @property
    def doubt(self) -> str:
        """Return why the speed-up decides nothing; empty where it may.

        A round takes at least as long as a plain one, so that tau bounds the speed-up.
        """
        if self.speedup.mean > self.tau.mean:
            return f"{self.speedup.mean:.2f}x at tau {self.tau.mean:.2f}, which bounds it"
        return "one prompt alone" if self.speedup.n == 1 else ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a plan."""

    verdict: Verdict
    best: str  # the candidate
    reason: str  # in plain words
    numbers: str

    def __str__(self) -> str:
        return f"{self.reason} {self.numbers}"


def answer(
    best: Prediction,
    measured: Measured | None,
    needs: BreakEven,
    candidates: int,
    doubt: str = "",
) -> Answer:
    """Return the answer for the best candidate from its measurement; predictions do not decide.

    Without an interval, a measurement decides only on a quiet machine and where the prediction
    gives the same verdict.

    Args:
        candidates: number of candidates.
        needs: break-even values of the same draft and rule.
        doubt: contradictions in the costs behind the prediction.
    """
    foretold = decided(best.speedup)
    if measured is None:
        return unmeasured(best, foretold, needs, candidates, doubt)
    if measured.doubt:
        numbers = (
            f"Not decided: {among(candidates)} predicted to be {spread(best.speedup)} "
            f"({best.candidate}); what was measured does not count: {measured.doubt}."
        )
        return Answer(
            verdict=Verdict.UNDECIDED, best=str(best.candidate), reason=UNSURE, numbers=numbers
        )
    verdict = decided(measured.speedup)
    doubtful = bool(doubt) or measured.loaded or verdict is not foretold
    if measured.speedup.low is None and doubtful:
        verdict = Verdict.UNDECIDED
    reason = why(verdict, best, needs)
    if verdict is Verdict.SPECULATE:
        numbers = f"Speculate with {best.candidate}: {measured_and_predicted(best, measured)}."
    elif verdict is Verdict.UNDECIDED:
        numbers = f"Not decided: {best.candidate} is {measured_and_predicted(best, measured)}."
    else:
        numbers = (
            f"Do not speculate: {among(candidates)} {measured_and_predicted(best, measured)} "
            f"({best.candidate}). {lacks(best, needs)}"
        )
    return Answer(verdict=verdict, best=str(best.candidate), reason=reason, numbers=numbers)


def unmeasured(
    best: Prediction, foretold: Verdict, needs: BreakEven, candidates: int, doubt: str
) -> Answer:
    """Return the answer for a candidate without a measurement."""
    if doubt:
        reason = f"The costs contradict each other: {doubt}."
    elif foretold in (Verdict.SPECULATE, Verdict.UNDECIDED):
        reason = "It may pay, but no real rounds were measured."
    else:
        reason = "It hardly pays by the prediction, but no real rounds were measured."
    numbers = (
        f"Not decided: {among(candidates)} predicted to be {spread(best.speedup)} "
        f"({best.candidate}), and was not measured."
    )
    if foretold is Verdict.DO_NOT:
        numbers += f" {lacks(best, needs)}"
    return Answer(
        verdict=Verdict.UNDECIDED, best=str(best.candidate), reason=reason, numbers=numbers
    )


def among(candidates: int) -> str:
    """Format the subject: `it is`, `the best of 14 candidates is`."""
    return "it is" if candidates == 1 else f"the best of {candidates} candidates is"


def unpredicted(name: str, measured: Measured) -> Answer:
    """Return the answer for a candidate with a measurement and without a prediction."""
    verdict = decided(measured.speedup)
    text = f"{name}: {spread(measured.speedup)} measured; no text tells what to expect of it"
    if measured.speedup.low is None or verdict is Verdict.UNDECIDED:
        verdict, reason, numbers = Verdict.UNDECIDED, UNSURE, f"Not decided: {text}."
    elif verdict is Verdict.SPECULATE:
        reason, numbers = "It was the fastest in real rounds.", f"Speculate with {text}."
    else:
        reason = "Nothing that was measured is faster than plain sampling by a margin that matters."
        numbers = f"Do not speculate: the best is {text}."
    return Answer(verdict=verdict, best=name, reason=reason, numbers=numbers)


def decided(gained: Estimate) -> Verdict:
    """Return the verdict, from the interval where there is one."""
    low = gained.mean if gained.low is None else gained.low
    high = gained.mean if gained.high is None else gained.high
    if gained.mean >= NOTICED and low > 1:
        return Verdict.SPECULATE
    if gained.mean < 1 or high < NOTICED:
        return Verdict.DO_NOT
    return Verdict.NEITHER if gained.mean < NOTICED else Verdict.UNDECIDED


def measured_and_predicted(best: Prediction, measured: Measured) -> str:
    """Format measured and predicted: `1.71x (1.64 to 1.79) measured, 1.74x predicted`."""
    return f"{spread(measured.speedup)} measured, {best.speedup.mean:.2f}x predicted"


def spread(estimate: Estimate, unit: str = "x") -> str:
    """Format a figure with its interval: `1.71x (1.64 to 1.79)`."""
    value = f"{estimate.mean:.2f}{unit}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({estimate.low:.2f} to {estimate.high:.2f})"


def why(verdict: Verdict, best: Prediction, needs: BreakEven) -> str:
    """Return the reason in one sentence without formulas."""
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


def lacks(best: Prediction, needs: BreakEven) -> str:
    """Return the actual and the needed numbers behind the reason."""
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
    """Format a share: `a fifth`, `0.41`."""
    words = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 10: "a tenth"}
    for n, word in words.items():
        if abs(c * n - 1) < 0.1:
            return word
    return f"{c:.2g}"


def best_of(forecasts: Sequence[Prediction]) -> Prediction:
    """Return the forecast with the greatest predicted speed-up."""
    return max(forecasts, key=lambda f: f.speedup.mean)


Traced = Mapping[str, tuple[DraftOf, Sequence[tuple[Written, Along]]]]
"""Traced texts: name of the draft -> identity of the draft, and its texts with traces."""

WANTED = 0.05  # half the relative interval of a speed-up; beyond it more texts are recommended


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecasts:
    """The forecasts of all candidates."""

    all: tuple[Prediction, ...]
    ceilings: Mapping[str, float]  # greatest speed-up of any schedule, by draft and rule
    costs: Costs
    tokens: int  # generated tokens of all texts
    context: float  # mean tokens before the middle of a text
    new_prompts: int | None = None  # that the intervals are for; None: as many as traced

    @property
    def best(self) -> Prediction:
        """Return the forecast with the greatest predicted speed-up."""
        return best_of(self.all)

    @property
    def by_method(self) -> list[Prediction]:
        """Return the best K of each draft, rule and schedule, the best first."""
        methods = grouped_by(self.all, lambda f: f.candidate.method)
        return sorted(map(best_of, methods.values()), key=lambda f: -f.speedup.mean)

    def needs(self, of: Prediction) -> BreakEven:
        """Return the break-even values of this draft and rule."""
        same = [f for f in self.all if group(f.candidate) == group(of.candidate)]
        return break_even(same, self.costs.target(1, self.context).value)

    def answer(self, measured: Mapping[str, Measured]) -> Answer:
        """Return the answer, from measurements where there are any, else from predictions."""
        counted = [name for name, figures in measured.items() if not figures.doubt]
        fastest = max(counted, key=lambda n: measured[n].speedup.mean, default=None)
        if fastest is None:
            best = self.best
        else:
            measured_best = next((f for f in self.all if str(f.candidate) == fastest), None)
            if measured_best is None:
                return unpredicted(fastest, measured[fastest])
            best = measured_best
        figures = measured.get(str(best.candidate)), self.needs(best), len(self.all)
        mine = [c for c in self.costs.contradictions() if c.draft == best.candidate.draft]
        return answer(best, *figures, "; ".join(map(str, mine)))

    def remarks(self) -> list[str]:
        """Return the assumptions and limits of the figures."""
        best = self.best
        lines = [
            f"Predicted from {best.texts} texts of {self.tokens} tokens and a table of costs of "
            f"{self.costs.turns} turns; intervals: 95 %, for {self.new_prompts or best.texts} "
            "other prompts and other timings."
        ]
        if best.texts < FEWEST:
            lines.append(
                f"The trace is too short for an interval: it has {best.texts} texts, and needs "
                f"{FEWEST - best.texts} more, about "
                f"{round(self.tokens / best.texts * (FEWEST - best.texts))} tokens."
            )
        short = lacking(best, self.tokens, WANTED)
        if short is not None:
            lines.append(
                f"The trace is short: by its texts the speed-up is known to {short[0]:.0%}. For "
                f"{WANTED:.0%} it needs about {short[1]} tokens more."
            )
        if self.costs.busy:
            lines.append(
                "Other work kept this machine busy while the costs were measured: the intervals "
                "were widened for it. End it (top shows it) and plan again."
            )
        lines += [
            f"The costs contradict each other: {contradiction}. Predictions take both to "
            "last as long."
            for contradiction in self.costs.contradictions()
        ]
        drafts = {f.candidate.draft: f for f in reversed(self.by_method)}
        shapes = [f for name, f in drafts.items() if " shape:" in name]
        lines += [f"{f.candidate}: {lacks(f, self.needs(f))}" for f in shapes]
        if self.costs.changed:
            factors = ", ".join(f"{part} times {by:g}" for part, by in self.costs.changed.items())
            lines.append(f"What if: {factors}.")
        whole = best.ms.mean * best.tau.mean
        lines.append(
            f"A round of {best.candidate} takes {whole:.2f} ms; fixed per round: "
            f"{best.shares.unexplained * whole:+.2f} ms, not explained by its parts."
        )
        simulate = [f for f in self.all if f.simulated]
        for text, names in (
            (
                "are estimates: what it drafts depends on more than the text.",
                {f.candidate.draft for f in self.all if not f.exact},
            ),
            (
                "are simulated: they depend on all earlier rounds.",
                {f.candidate.schedule[0] for f in simulate if f.candidate.schedule is not None},
            ),
        ):
            if names:
                lines.append(f"Counts of {', '.join(sorted(names))} {text}")
        return lines


def grouped_by(
    predictions: Iterable[Prediction], key: Callable[[Prediction], Key]
) -> dict[Key, list[Prediction]]:
    """Return predictions by a key, in their order."""
    groups: dict[Key, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction), []).append(prediction)
    return groups


def group(candidate: Candidate) -> tuple[str, str]:
    """Return the key of candidates that differ in K or schedule alone."""
    return candidate.draft, candidate.verifier


def is_traced(candidate: Candidate, draft: DraftOf) -> bool:
    """Return whether a deterministic draft was traced with at least the candidate's K."""
    return draft.sampled or (candidate.k or 0) <= draft.most


def forecast_all(
    candidates: Iterable[Candidate],
    traced: Traced,
    costs: Costs,
    notify: Callable[[int, int], None] = lambda done, total: None,
    new_prompts: int | None = None,
) -> Forecasts:
    """Return the forecast of every candidate that was traced.

    Args:
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced.

    Raises:
        DataError: the costs lack a candidate.
    """
    grouped: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.draft in traced and is_traced(candidate, traced[candidate.draft][0]):
            grouped.setdefault(candidate.draft, []).append(candidate)
    total, done = sum(map(len, grouped.values())), itertools.count()
    predictions: list[Prediction] = []
    for name, of_draft in grouped.items():
        draft, texts = traced[name]
        predictions += predict(
            of_draft, draft, texts, costs, new_prompts, lambda: notify(next(done), total)
        )
    notify(total, total)
    methods = grouped_by(predictions, lambda f: f.candidate.method)
    for members in methods.values():
        factor = selection_factor(np.stack([prediction.by_prompt() for prediction in members]))
        for prediction in members:
            prediction.factor = factor
    highest = {}
    for key, members in grouped_by(predictions, lambda f: group(f.candidate)).items():
        draft, texts = traced[key[0]]
        most = max(f.candidate.k or 0 for f in members) or draft.most or 16
        seconds = least_seconds(members[0].candidate, draft, texts, costs, most)
        baseline = members[0].baseline or members[0]
        reached = [f.speedup.mean for f in members]  # noise, or costs that fall with K, are above
        highest[str(key)] = max(baseline.sums.seconds / seconds, *reached)
    texts_of = {text.key: text for _, pairs in traced.values() for text, _ in pairs}
    written = list(texts_of.values())
    middle = sum(text.prompt_tokens + len(text.q) / 2 for text in written) / len(written)
    return Forecasts(
        all=tuple(predictions),
        ceilings=highest,
        costs=costs,
        tokens=sum(len(text.q) for text in written),
        context=middle,
        new_prompts=new_prompts,
    )
