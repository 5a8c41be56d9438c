"""The forecasts of all candidates of a plan, with the ceilings, the answer and the remarks."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spsbench.metrics.costs import STEP, Costs
from spsbench.metrics.intervals import FEWEST
from spsbench.metrics.sums import group_by
from spsbench.planning.forecast.predictions import (
    Prediction,
    Simulate,
    predict,
    rule_of,
    selection_factor,
)
from spsbench.planning.forecast.recommendation import (
    BreakEven,
    Measured,
    Recommendation,
    break_even,
    format_estimate,
    lacks,
    recommend,
)
from spsbench.planning.forecast.rounds import acceptances_of, least_cost, room_along
from spsbench.settings.method import Drafting, Method
from spsbench.store.traces import Along, DraftOf, Written

Traced = Mapping[Drafting, tuple[DraftOf, Sequence[tuple[Written, Along]]]]
"""Traced texts: draft -> its identity, and its texts with traces."""

FEWEST_CEILING, ALL_CEILING = 10, 1600  # simulations of a text, and of all; no three digits needed


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecasts:
    """The forecasts of all candidates."""

    all: tuple[Prediction, ...]
    ceilings: Mapping[Method, float]  # greatest speed-up of any schedule, by draft and rule
    costs: Costs
    tokens: int  # generated tokens of all texts
    context: float  # mean tokens before the middle of a text
    new_prompts: int | None = None  # prompts that the intervals hold for; None: as many as traced

    @property
    def best(self) -> Prediction:
        """Return the forecast with the greatest predicted speed-up."""
        return best_of(self.all)

    @property
    def by_method(self) -> list[Prediction]:
        """Return the best K of each draft, rule and schedule, the best first."""
        methods = group_by(self.all, lambda f: f.method.at_any_k)
        return sorted(map(best_of, methods.values()), key=lambda f: -f.speedup.mean)

    def needs(self, of: Prediction) -> BreakEven:
        """Return the break-even values of this draft and rule."""
        same = [f for f in self.all if f.method.group == of.method.group]
        return break_even(same, self.costs.target(1, self.context).value)

    def answer(self, measured: Mapping[Method, Measured]) -> Recommendation:
        """Return the answer for the best method measured without doubt, else the best predicted.

        Its numbers end with what was measured of the best predicted, if that is another method.
        """
        forecasts = {f.method: f for f in self.all}
        counted = [method for method, figures in measured.items() if not figures.doubt]
        method = max(counted, key=lambda m: measured[m].speedup.mean, default=self.best.method)
        best = forecasts.get(method)
        needs = BreakEven() if best is None else self.needs(best)
        draft = None if best is None else method.drafting
        doubts = [str(c) for c in self.costs.contradictions() if c.draft == draft]
        figures, usual = measured.get(method), self.best.method
        reply = recommend(method, best, figures, needs, len(self.all), "; ".join(doubts))
        if method == usual:
            return reply
        first = measured.get(usual)
        fate = "was not measured" if first is None else f"measured {format_estimate(first.speedup)}"
        return replace(reply, numbers=f"{reply.numbers} {usual}, first by prediction, {fate}.")

    def remarks(self) -> list[str]:
        """Return sentences: the assumptions, limits and contradictions of the figures."""
        best, costs = self.best, self.costs
        few = FEWEST - best.texts
        drafts = {f.method.drafting: f for f in reversed(self.by_method)}
        shapes = [f for drafting, f in drafts.items() if drafting.is_shape]
        estimated = {str(f.method.drafting) for f in self.all if not f.exact}
        simulated = {str(f.method.schedule) for f in self.all if f.rounds.simulated}
        factors = ", ".join(f"{part} times {by:g}" for part, by in costs.changed.items())
        lines = [
            f"Predicted from {best.texts} texts, {self.tokens} tokens in all, and costs that were "
            f"measured {costs.turns} times; intervals: 95 %, for {self.new_prompts or best.texts} "
            "other prompts and other timings."
        ]
        if few > 0:
            lines.append(
                f"The trace is too short for an interval: it has {best.texts} texts, and needs "
                f"{few} more, about {round(self.tokens / best.texts * few)} tokens."
            )
        if costs.busy:
            lines.append(
                "Other work kept this machine busy while the costs were measured: the intervals "
                "were widened for it. End it (top shows it) and plan again."
            )
        lines += [
            f"The costs contradict each other: {c}. Predictions take both to last as long."
            for c in costs.contradictions()
        ]
        lines += [f"{f.method}: {lacks(f, self.needs(f))}" for f in shapes]
        lines += [f"What if: {factors}."] * bool(factors)
        lines.append(
            f"A round of {best.method} takes {best.round_ms:.2f} ms; fixed per round: "
            f"{best.shares['unexplained'] * best.round_ms:+.2f} ms, not explained by its parts."
        )
        if estimated:
            lines.append(
                f"Counts of {', '.join(sorted(estimated))} are estimates: what it drafts depends "
                "on more than the text."
            )
        if simulated:
            lines.append(
                f"Counts of {', '.join(sorted(simulated))} are simulated: they depend on all "
                "earlier rounds."
            )
        return lines


def best_of(forecasts: Sequence[Prediction]) -> Prediction:
    """Return the forecast with the greatest predicted speed-up."""
    return max(forecasts, key=lambda f: f.speedup.mean)


def forecast_all(
    methods: Iterable[Method],
    traced: Traced,
    costs: Costs,
    notify: Callable[[int, int], None] = lambda done, total: None,
    new_prompts: int | None = None,
    simulate: Simulate | None = None,
) -> Forecasts:
    """Return the forecast of every method whose draft was traced with as large a K.

    `traced`: drafting -> its identity, and its texts with traces, one or more. `notify` is called
    with the texts done and all of them, each along each draft. Intervals hold for `new_prompts`
    prompts; None: as many as traced. `simulate` makes the rounds of schedules that are not constant
    (ValueError: one lacks it). The best K of several is predicted to gain less on other prompts
    (`selection_factor`). DataError: no costs of a draft.
    """
    replayed = (m for m in methods if m.drafting in traced and traced[m.drafting][0].replays(m.k))
    by_draft = group_by(replayed, lambda method: method.drafting)
    total, done = sum(len(traced[drafting][1]) for drafting in by_draft), itertools.count()
    predictions: list[Prediction] = []
    plain: dict[tuple[Any, ...], Prediction] = {}  # keys of the texts -> ArS over them
    for drafting, of_draft in by_draft.items():
        draft, texts = traced[drafting]
        keys = tuple(text.key for text, _ in texts)
        predictions += predict(
            of_draft,
            draft,
            texts,
            costs,
            new_prompts,
            lambda: notify(next(done), total),
            plain.get(keys),
            simulate,
        )
        plain[keys] = predictions[-1].baseline or predictions[-1]
    notify(total, total)
    factors = {
        method: selection_factor(np.stack([prediction.by_prompt() for prediction in members]))
        for method, members in group_by(predictions, lambda f: f.method.at_any_k).items()
    }
    predictions = [replace(p, factor=factors[p.method.at_any_k]) for p in predictions]
    ceilings = {}
    for group, members in group_by(predictions, lambda f: f.method.group).items():
        draft, texts = traced[group.drafting]
        most = max(f.method.k or 0 for f in members) or draft.most or 16
        seconds = least_seconds(group, draft, texts, costs, most)
        baseline = members[0].baseline or members[0]
        reached = [f.speedup.mean for f in members]  # noise, or costs that fall with K, are above
        ceilings[group] = max(baseline.sums.seconds / seconds, *reached)
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
    group: Method, draft: DraftOf, traced: Sequence[tuple[Written, Along]], costs: Costs, most: int
) -> float:
    """Return the least seconds of all texts with the best K, 0 to `most`, of every round.

    The choice knows all acceptances, which no real schedule does. Each text, one or more, counts
    with its mean over simulations. `group`: a draft and a rule. DataError: no costs of the draft.
    """
    simulations = max(FEWEST_CEILING, ALL_CEILING // len(traced))
    drafter, rule = group.drafting, group.verifier
    by_step: dict[int, list[float]] = {}
    total = 0.0
    for text, trace in traced:
        steps = [(text.prompt_tokens + t) // STEP for t in range(len(text.q))]
        for step in set(steps) - by_step.keys():
            priced = (costs.round(drafter, n, n, step * STEP, rule=rule) for n in range(most + 1))
            by_step[step] = [float(np.median(seconds.sum(0))) for seconds in priced]
        acceptances = acceptances_of(text, trace, rule_of(group, draft), most)
        cost = np.array([by_step[step] for step in steps])
        total += least_cost(acceptances, room_along(text, trace), cost, simulations)
    return total
