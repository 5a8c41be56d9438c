"""The forecasts of all candidates of a plan, with the ceilings, the answer and the remarks."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spsbench.metrics.costs import STEP, Costs
from spsbench.metrics.intervals import FEWEST
from spsbench.planning.forecast.predictions import (
    Candidate,
    Prediction,
    predict,
    rule_of,
    selection_factor,
)
from spsbench.planning.forecast.recommendation import (
    Answer,
    BreakEven,
    Measured,
    answer,
    break_even,
    lacks,
)
from spsbench.planning.forecast.rounds import acceptances_of, least_cost, room_along
from spsbench.store.traces import Along, DraftOf, Written

Traced = Mapping[str, tuple[DraftOf, Sequence[tuple[Written, Along]]]]
"""Traced texts: name of the draft -> identity of the draft, and its texts with traces."""

FEWEST_CEILING, ALL_CEILING = 10, 1600  # simulations of a text, and of all; no three digits needed


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
        methods = grouped_by(self.all, lambda c: c.method)
        return sorted(map(best_of, methods.values()), key=lambda f: -f.speedup.mean)

    def needs(self, of: Prediction) -> BreakEven:
        """Return the break-even values of this draft and rule."""
        same = [f for f in self.all if f.candidate.group == of.candidate.group]
        return break_even(same, self.costs.target(1, self.context).value)

    def answer(self, measured: Mapping[str, Measured]) -> Answer:
        """Return the answer, from measurements where there are any, else from predictions."""
        by_name = {str(f.candidate): f for f in self.all}
        counted = [name for name, figures in measured.items() if not figures.doubt]
        usual = str(self.best.candidate)
        name = max(counted, key=lambda n: measured[n].speedup.mean, default=usual)
        best = by_name.get(name)
        needs = BreakEven() if best is None else self.needs(best)
        draft = None if best is None else best.candidate.draft
        doubts = [str(c) for c in self.costs.contradictions() if c.draft == draft]
        return answer(name, best, measured.get(name), needs, len(self.all), "; ".join(doubts))

    def remarks(self) -> list[str]:
        """Return the assumptions and limits of the figures."""
        best, costs = self.best, self.costs
        few = FEWEST - best.texts
        drafts = {f.candidate.draft: f for f in reversed(self.by_method)}
        shapes = [f for name, f in drafts.items() if " shape:" in name]
        estimated = {f.candidate.draft for f in self.all if not f.exact}
        simulated = {
            f.candidate.schedule[0] for f in self.all if f.simulated and f.candidate.schedule
        }
        factors = ", ".join(f"{part} times {by:g}" for part, by in costs.changed.items())
        rows = (
            (
                True,
                f"Predicted from {best.texts} texts, {self.tokens} tokens in all, and costs that "
                f"were measured {costs.turns} times; intervals: 95 %, for "
                f"{self.new_prompts or best.texts} other prompts and other timings.",
            ),
            (
                few > 0,
                f"The trace is too short for an interval: it has {best.texts} texts, and needs "
                f"{few} more, about {round(self.tokens / best.texts * few)} tokens.",
            ),
            (
                costs.busy,
                "Other work kept this machine busy while the costs were measured: the intervals "
                "were widened for it. End it (top shows it) and plan again.",
            ),
            *(
                (
                    True,
                    f"The costs contradict each other: {c}. Predictions take both to last as long.",
                )
                for c in costs.contradictions()
            ),
            *((True, f"{f.candidate}: {lacks(f, self.needs(f))}") for f in shapes),
            (bool(factors), f"What if: {factors}."),
            (
                True,
                f"A round of {best.candidate} takes {best.round_ms:.2f} ms; fixed per round: "
                f"{best.shares['unexplained'] * best.round_ms:+.2f} ms, not explained by its "
                "parts.",
            ),
            (
                bool(estimated),
                f"Counts of {', '.join(sorted(estimated))} are estimates: what it drafts depends "
                "on more than the text.",
            ),
            (
                bool(simulated),
                f"Counts of {', '.join(sorted(simulated))} are simulated: they depend on all "
                "earlier rounds.",
            ),
        )
        return [remark for holds, remark in rows if holds]


def best_of(forecasts: Sequence[Prediction]) -> Prediction:
    """Return the forecast with the greatest predicted speed-up."""
    return max(forecasts, key=lambda f: f.speedup.mean)


def grouped_by(
    predictions: Iterable[Prediction], key: Callable[[Candidate], str]
) -> dict[str, list[Prediction]]:
    """Return predictions by a name of their candidates, in their order."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction.candidate), []).append(prediction)
    return groups


def forecast_all(
    candidates: Iterable[Candidate],
    traced: Traced,
    costs: Costs,
    notify: Callable[[int, int], None] = lambda done, total: None,
    new_prompts: int | None = None,
) -> Forecasts:
    """Return the forecast of every candidate that was traced, with as large a K.

    Args:
        notify: is called with the texts done and all of them, each along each draft.
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced.
    """
    by_draft: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        name = candidate.draft
        if name in traced:
            draft = traced[name][0]
            if draft.sampled or (candidate.k or 0) <= draft.most:
                by_draft.setdefault(name, []).append(candidate)
    total, done = sum(len(traced[name][1]) for name in by_draft), itertools.count()
    predictions: list[Prediction] = []
    plain: dict[tuple[Any, ...], Prediction] = {}  # by the texts
    for name, of_draft in by_draft.items():
        draft, texts = traced[name]
        keys = tuple(text.key for text, _ in texts)
        of_texts = plain.get(keys)
        predictions += predict(
            of_draft, draft, texts, costs, new_prompts, lambda: notify(next(done), total), of_texts
        )
        plain[keys] = predictions[-1].baseline or predictions[-1]
    notify(total, total)
    for members in grouped_by(predictions, lambda c: c.method).values():
        factor = selection_factor(np.stack([prediction.by_prompt() for prediction in members]))
        for prediction in members:
            prediction.factor = factor
    ceilings = {}
    for key, members in grouped_by(predictions, lambda c: c.group).items():
        draft, texts = traced[members[0].candidate.draft]
        most = max(f.candidate.k or 0 for f in members) or draft.most or 16
        seconds = least_seconds(members[0].candidate, draft, texts, costs, most)
        baseline = members[0].baseline or members[0]
        reached = [f.speedup.mean for f in members]  # noise, or costs that fall with K, are above
        ceilings[key] = max(baseline.sums.seconds / seconds, *reached)
    written = {text.key: text for _, pairs in traced.values() for text, _ in pairs}.values()
    middles = [text.prompt_tokens + len(text.q) / 2 for text in written]
    return Forecasts(
        all=tuple(predictions),
        ceilings=ceilings,
        costs=costs,
        tokens=sum(len(text.q) for text in written),
        context=sum(middles) / len(middles),
        new_prompts=new_prompts,
    )


def least_seconds(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    costs: Costs,
    most: int,
) -> float:
    """Return the least seconds of all texts with the best K, up to `most`, of every round.

    The choice knows all acceptances, which no real schedule does.
    """
    simulations = max(FEWEST_CEILING, ALL_CEILING // len(traced))
    drafter, rule = candidate.draft, candidate.verifier
    by_step: dict[int, list[float]] = {}
    total = 0.0
    for text, trace in traced:
        steps = [(text.prompt_tokens + t) // STEP for t in range(len(text.q))]
        for step in set(steps) - by_step.keys():
            priced = (costs.round(drafter, n, n, step * STEP, rule=rule) for n in range(most + 1))
            by_step[step] = [float(np.median(seconds.sum(0))) for seconds in priced]
        acceptances = acceptances_of(text, trace, rule_of(candidate, draft), most)
        cost = np.array([by_step[step] for step in steps])
        total += least_cost(acceptances, room_along(text, trace), cost, simulations)
    return total
