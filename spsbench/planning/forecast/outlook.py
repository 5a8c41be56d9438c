"""All candidates together: forecasts, ceilings, and which of them to measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spsbench.metrics.intervals import FEWEST
from spsbench.planning.forecast.answer import Answer, Measured, answer, best_of, untold
from spsbench.planning.forecast.break_even import BreakEven, break_even
from spsbench.planning.forecast.candidates import Candidate
from spsbench.planning.forecast.ceilings import Ceilings, above, ceilings
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.forecasts import Forecast, forecast, lacking
from spsbench.planning.forecast.pricing import Prices
from spsbench.planning.forecast.traces import Along, DraftOf, Written

Traced = Mapping[str, tuple[DraftOf, Sequence[tuple[Written, Along]]]]
"""What drafts -> what it is, and the texts that it was traced along."""

WANTED = 0.05  # half the interval of a speed-up, relative: beyond that more texts are asked for


@dataclass(frozen=True, kw_only=True, eq=False)
class Outlook:
    """What is predicted of every candidate."""

    forecasts: tuple[Forecast, ...]
    ceilings: Mapping[str, Ceilings]  # by draft and rule
    costs: Costs
    tokens: int  # of the texts
    context: float  # tokens before the middle of a text, the mean

    @property
    def best(self) -> Forecast:
        """Of the greatest predicted speed-up."""
        return best_of(self.forecasts)

    @property
    def by_method(self) -> list[Forecast]:
        """The best K of each draft, rule and schedule, the best first."""
        methods: dict[str, list[Forecast]] = {}
        for each in self.forecasts:
            methods.setdefault(each.candidate.method, []).append(each)
        return sorted(map(best_of, methods.values()), key=lambda f: -f.speedup.mean)

    def needs(self, of: Forecast) -> BreakEven:
        """What would have to be otherwise with this draft and rule."""
        same = [f for f in self.forecasts if group(f.candidate) == group(of.candidate)]
        return break_even(same, self.costs.target(1, self.context).value)

    def answer(self, measured: Mapping[str, Measured]) -> Answer:
        """By what was measured, where something was; else by the predictions."""
        fastest = max(measured, key=lambda n: measured[n].speedup.mean, default=None)
        if fastest is None:
            best = self.best
        else:
            found = next((f for f in self.forecasts if str(f.candidate) == fastest), None)
            if found is None:
                return untold(fastest, measured[fastest])
            best = found
        given = measured.get(str(best.candidate)), self.needs(best), len(self.forecasts)
        mine = [c for c in self.costs.contradictions() if c.draft == best.candidate.draft]
        return answer(best, *given, "; ".join(map(str, mine)))

    def remarks(self) -> list[str]:
        """What the figures stand on."""
        best = self.best
        lines = [
            f"Predicted from {best.texts} texts of {self.tokens} tokens and a table of costs of "
            f"{self.costs.turns} turns; intervals: 95 %, for other texts and other timings."
        ]
        if best.texts < FEWEST:
            lines.append(
                f"The trace is too short for an interval: it has {best.texts} texts, and needs "
                f"{FEWEST - best.texts} more, about {self._more(FEWEST)} tokens."
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
            f"The costs contradict each other: {each}. Predictions take both to last as long."
            for each in self.costs.contradictions()
        ]
        if self.costs.changed:
            factors = ", ".join(f"{part} times {by:g}" for part, by in self.costs.changed.items())
            lines.append(f"What if: {factors}.")
        fixed = best.shares.unexplained * best.ms.mean * best.tau.mean
        lines.append(
            f"A round of {best.candidate} takes {best.ms.mean * best.tau.mean:.2f} ms; fixed per "
            f"round: {fixed:+.2f} ms, not explained by its parts."
        )
        thrown = [f for f in self.forecasts if f.thrown]
        for told, names in (
            (
                "are estimates: what it drafts depends on more than the text.",
                {f.candidate.draft for f in self.forecasts if not f.exact},
            ),
            (
                "are of thrown coins: no text is short enough to reckon with all that they learn.",
                {f.candidate.schedule[0] for f in thrown if f.candidate.schedule is not None},
            ),
        ):
            if names:
                lines.append(f"Counts of {', '.join(sorted(names))} {told}")
        return lines

    def _more(self, texts: int) -> int:
        return round(self.tokens / self.best.texts * (texts - self.best.texts))


def group(candidate: Candidate) -> tuple[str, str]:
    """What differs in K or schedule alone."""
    return candidate.draft, candidate.verifier


def known(candidate: Candidate, draft: DraftOf) -> bool:
    """Whether a draft by rule was asked for as many tokens as the candidate would ask for."""
    return draft.sampled or (candidate.k or 0) <= draft.most


def outlook(
    candidates: Iterable[Candidate],
    traced: Traced,
    costs: Costs,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Outlook:
    """Forecast every candidate that was traced.

    Raises:
        DataError: the costs of one of them were not measured.
    """
    prices = Prices(costs)
    every = [c for c in candidates if c.draft in traced and known(c, traced[c.draft][0])]
    found, highest = [], {}
    for number, each in enumerate(every):
        told(number, len(every))
        draft, texts = traced[each.draft]
        found.append(forecast(each, draft, texts, prices))
        name = str(group(each))
        if name not in highest:
            most = max(c.k or 0 for c in every if group(c) == group(each)) or draft.most or 16
            highest[name] = ceilings(each, draft, texts, prices, most)
    told(len(every), len(every))
    for made in found:
        name = str(group(made.candidate))
        highest[name] = above(highest[name], made.speedup.mean)
    texts_of = {text.key: text for _, pairs in traced.values() for text, _ in pairs}
    written = list(texts_of.values())
    middle = sum(text.prompt_tokens + len(text.q) / 2 for text in written) / len(written)
    return Outlook(
        forecasts=tuple(found),
        ceilings=highest,
        costs=costs,
        tokens=sum(len(text.q) for text in written),
        context=middle,
    )
