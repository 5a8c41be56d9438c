"""Forecasts: replay a candidate along traced texts and price its rounds by measured costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.costs import PLAIN, STEP, Costs, RoundCost
from spsbench.metrics.intervals import FEWEST, LEVEL, NORMAL, Estimate, Floats, Jackknife, over
from spsbench.metrics.surfaces import Typical, typical
from spsbench.planning.forecast.acceptance_chances import VerifierRule, acceptance_chances
from spsbench.planning.forecast.replay import (
    Always,
    Follows,
    Policy,
    RoundDistribution,
    pooled_tau,
    replay,
    span_of,
)
from spsbench.store.trace_records import Along, DraftOf, Drawn, Written

RULES = get_args(VerifierRule)
SEEN = "match"  # the rule under which deterministic drafts are replayed


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A way to speculate that could be run.

    Args:
        draft: name of the draft in trace and costs.
        verifier: the rule.
        k: tokens a round, where the schedule is constant.
        schedule: spec and object of a schedule that is not constant.
    """

    draft: str
    verifier: str
    k: int | None = None
    schedule: tuple[str, Any] | None = None

    @property
    def policy(self) -> Policy:
        """Return the policy for a replay."""
        if self.schedule is not None:
            return Follows(self.schedule[1])
        return Always(self.k or 0)

    @property
    def method(self) -> str:
        """Return a name of the method: all fields but K."""
        depth = "" if self.schedule is None else f", {self.schedule[0]}"
        return f"{self.draft}, {self.verifier}{depth}"

    def __str__(self) -> str:
        depth = f"K = {self.k}" if self.schedule is None else self.schedule[0]
        return f"{self.draft}, {depth}, {self.verifier}"


PARTS = len(RoundCost._fields) - 1


class Priced(Protocol):
    """The fields of a candidate that determine its price."""

    @property
    def draft(self) -> str:
        """Return the name of the arm in the costs."""

    @property
    def verifier(self) -> str:
        """Return the rule."""


class RoundTimes:
    """Seconds of rounds by part and turn, from a table of costs, each cached."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._plain: dict[tuple[int, int], Floats] = {}
        self._medians: dict[tuple[str, str | None, int, int, int], float] = {}

    def of_round(
        self, draft: str, verifier: str | None, requested: int, drafted: int, context: int
    ) -> Floats:
        """Return [parts, turns] seconds of one round."""
        return self.costs.round(draft, requested, drafted, context, rule=verifier)

    def seconds(
        self, draft: str, verifier: str | None, requested: int, drafted: int, context: int
    ) -> float:
        """Return the median over turns of the seconds of a whole round."""
        key = draft, verifier, requested, drafted, context // STEP
        if key not in self._medians:
            self._medians[key] = float(np.median(self.of_round(*key[:4], context).sum(0)))
        return self._medians[key]

    def of_law(self, candidate: Priced, text: Written, law: RoundDistribution) -> Floats:
        """Return [parts, turns] expected seconds of a text."""
        total = np.zeros((PARTS, self.costs.turns))
        for start in law.starts:
            context = text.prompt_tokens + start.position
            round_key = candidate.draft, candidate.verifier, start.requested, start.drafted, context
            total += start.chance * self.of_round(*round_key)
        return total

    def of_plain(self, text: Written) -> Floats:
        """Return [turns] seconds of the same text by ArS."""
        key = text.prompt_tokens, len(text.q)
        if key in self._plain:
            return self._plain[key]
        total = np.zeros(self.costs.turns)
        for position in range(len(text.q)):
            total += self.of_round(PLAIN, None, 0, 0, text.prompt_tokens + position).sum(0)
        self._plain[key] = total
        return total

    def round_of(
        self, candidate: Priced, requested: float, context: float, drafted: float
    ) -> RoundCost:
        """Return the cost of a round of the mean size, part by part."""
        rule = candidate.verifier if candidate.verifier in self.costs.rules else None
        return self.costs.round_seconds(
            candidate.draft, requested, context, drafted=drafted, verifier=rule
        )


TWO_SIDED = NORMAL.inv_cdf((1 + LEVEL) / 2)
ALL_SIMULATIONS = 2000  # simulations over all texts, where a schedule cannot be computed exactly
FEWEST_SIMULATIONS = 20


class Shares(NamedTuple):
    """Shares of the time of a round, by part."""

    draft: float
    target: float
    sampling: float
    verify: float
    host: float
    unexplained: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """The forecast of a candidate."""

    candidate: Candidate
    alpha: Estimate | None  # chance that a tested token is kept; None: the rule tests no slots
    right: float  # expected acceptance rate of the pair, under any rule
    tau: Estimate  # emitted tokens a round
    ms: Estimate  # decode time of a token
    speedup: Estimate  # over ArS on the same texts
    by_texts: Estimate  # interval over texts only, without the error of the costs
    plain_ms: float  # of ArS
    shares: Shares
    cost: RoundCost  # of a round of the mean K after the mean context
    drafted: float  # a round of the mean K after the mean context
    operations: float  # of a drafted token over those of a row of the target; 0 for drafts by rule
    wasted: float  # mean drafted tokens of a round
    exact: bool  # counts are exact for these texts; only times are estimates
    simulate: bool  # counts are simulated
    texts: int
    sums: Floats  # [prompts, 4] emitted tokens, rounds, seconds, and seconds of ArS

    @property
    def work(self) -> float:
        """Return operations over those of plain sampling (Leviathan et al. 2023, Theorem 3.11).

        Rows of the target a token, and of a draft model the share that a token of it takes.
        """
        return (1 + self.drafted * (1 + self.operations)) / self.tau.mean

    def scaled(self, factor: float) -> "Forecast":
        """Return the forecast with `factor` times the gain; a round emits one token at least."""
        factor = max(factor, 1 / self.tau.mean)
        return replace(
            self,
            tau=times(self.tau, factor),
            ms=times(self.ms, 1 / factor),
            speedup=times(self.speedup, factor),
            by_texts=times(self.by_texts, factor),
        )


def forecast(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    round_times: RoundTimes,
    new_prompts: int | None = None,
) -> Forecast:
    """Replay a candidate along every text and price its rounds.

    Args:
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced.
    """
    simulations = max(FEWEST_SIMULATIONS, ALL_SIMULATIONS // len(traced))
    laws = [
        round_distribution(candidate, draft, text, along, simulations) for text, along in traced
    ]
    texts = [text for text, _ in traced]
    parts = np.stack(
        [round_times.of_law(candidate, text, law) for text, law in zip(texts, laws, strict=True)]
    )  # [texts, parts, turns]
    plain = np.stack([round_times.of_plain(text) for text in texts])  # [texts, turns]
    emitted = np.array([float(law.emitted) for law in laws])
    rounds = np.array([law.mean_rounds for law in laws])
    whole = parts.sum(1)  # [texts, turns]

    clusters = np.unique([text.key[1] for text in texts], return_inverse=True)[1]
    good, looked = kept(laws, traced)
    columns = [emitted, rounds, np.median(whole, 1), np.median(plain, 1), good, looked]
    sums = Jackknife(np.column_stack(columns), clusters)
    figures = (over(0, 1), 1), (over(2, 0), 0), (over(3, 2), 2)
    of_mean = [sums.estimate(*figure) for figure in figures]
    chances = sum(law.variance for law in laws), float(rounds.sum())
    tau, ms, gained = (
        None if estimate is None else predicted(estimate, len(set(clusters)), new_prompts, *chances)
        for estimate in of_mean
    )
    if tau is None or ms is None or gained is None:
        raise ValueError("texts without a token")
    of_turns = whole.sum(0)
    drafted = sum(law.drafted for law in laws)
    accepted = sum(law.accepted for law in laws)
    shares = np.median(parts.sum(0) / of_turns, 1)
    requested = sum(s.chance * s.requested for law in laws for s in law.starts) / rounds.sum()
    mean_context = float(np.mean([t.prompt_tokens + len(t.q) / 2 for t in texts]))
    speedup = widened(gained, typical(plain.sum(0) / of_turns, round_times.costs.busy))
    return Forecast(
        candidate=candidate,
        alpha=None if candidate.verifier == "block" else sums.estimate(over(4, 5), 5),
        right=float(good.sum() / max(looked.sum(), 1e-12)),
        tau=tau,
        ms=widened(times(ms, 1e3), typical(1e3 * of_turns / emitted.sum(), round_times.costs.busy)),
        speedup=within(speedup, tau),
        by_texts=of_mean[2] or gained,
        plain_ms=float(np.median(plain.sum(0)) / emitted.sum() * 1e3),
        shares=Shares(*(float(share) for share in shares)),
        cost=round_times.round_of(candidate, requested, mean_context, drafted / rounds.sum()),
        drafted=float(drafted / rounds.sum()),
        operations=operations(candidate, draft, round_times.costs, mean_context),
        wasted=1 - accepted / drafted if drafted else 0.0,
        exact=draft.exact,
        simulate=any(law.simulations for law in laws),
        texts=len(set(clusters)),
        sums=summed(np.column_stack(columns[:4]), clusters),
    )


def operations(candidate: Candidate, draft: DraftOf, costs: Costs, context: float) -> float:
    """Return what a drafted token computes, in rows of the target: c, a ratio of times, for it."""
    if not draft.sampled:
        return 0.0
    return costs.relative(candidate.draft, candidate.k or 1, context).value


def summed(rows: Floats, clusters: NDArray[np.intp]) -> Floats:
    """Return the sums of the rows of each cluster."""
    sums = np.zeros((int(clusters.max()) + 1, rows.shape[1]))
    np.add.at(sums, clusters, rows)
    return sums


def selection_factor(candidates: Sequence[Forecast]) -> float:
    """Return what part of the gain of the best candidate is left on prompts that did not choose it.

    The best of several looks better on the prompts that it was chosen by than it is. Each prompt is
    left out in turn, and counted with the candidate that the others choose. That overstates what is
    lost where a prompt that decides the choice is left out, so half of it counts, on a log scale.
    """
    sums = np.stack([candidate.sums for candidate in candidates])  # [candidates, prompts, 4]
    count = sums.shape[1]
    if len(candidates) < 2 or count < 2:
        return 1.0
    seconds, plain = 2, 3
    total = sums.sum(1)
    others = total[:, None] - sums
    chosen = (others[..., plain] / others[..., seconds]).argmax(0)
    unseen = sums[chosen, np.arange(count)].sum(0)
    best = (total[:, plain] / total[:, seconds]).max()
    return float(min(1.0, unseen[plain] / unseen[seconds] / best) ** 0.5)


def tau_of(candidate: Candidate, draft: DraftOf, traced: Sequence[tuple[Written, Along]]) -> float:
    """Return the block efficiency alone, which needs no costs."""
    simulations = max(FEWEST_SIMULATIONS, ALL_SIMULATIONS // len(traced))
    return pooled_tau(
        round_distribution(candidate, draft, text, along, simulations) for text, along in traced
    )


def round_distribution(
    candidate: Candidate, draft: DraftOf, text: Written, along: Along, simulations: int
) -> RoundDistribution:
    """Return the distribution of the rounds of a text."""
    rule: Any = candidate.verifier if draft.sampled else SEEN
    name = None if candidate.schedule is None else candidate.schedule[0]
    return replay(
        acceptance_chances(text, along, rule, name),
        span_of(text, along),
        candidate.policy,
        simulations,
    )


def kept(
    laws: Sequence[RoundDistribution], traced: Sequence[tuple[Written, Along]]
) -> tuple[Floats, Floats]:
    """Return [texts] expected kept and tested tokens.

    For a sampled draft the kept tokens are the summed overlap of the distributions, as the decoding
    loop records it: the pair's alpha.
    """
    counts = []
    for law, (_, along) in zip(laws, traced, strict=True):
        if isinstance(along, Drawn):
            counts.append((float(law.looked @ along.overlap), float(law.looked.sum())))
        else:
            counts.append((law.accepted, law.tested))
    both = np.array(counts)
    return both[:, 0], both[:, 1]


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate in another unit."""
    low, high = (None if e is None else e * factor for e in (estimate.low, estimate.high))
    return Estimate(estimate.mean * factor, low, high, estimate.n)


def predicted(
    of_mean: Estimate, texts: int, new_prompts: int | None, variance: float, rounds: float
) -> Estimate:
    """Return an interval for the figure that other prompts will have, from that of the mean.

    A figure of few prompts varies by their texts, and by the acceptances along each text. Errors
    are relative and independent, so their squares add on a log scale.

    Args:
        texts: traced prompts.
        new_prompts: other prompts; None: as many.
        variance: of the number of rounds, given the traced texts, summed over them.
        rounds: expected number of rounds, summed likewise.
    """
    if of_mean.low is None or of_mean.high is None:
        return of_mean
    new = texts if new_prompts is None else new_prompts
    wider = np.sqrt(1 + texts / new)
    by_chance = TWO_SIDED * np.sqrt(variance * texts / new) / rounds
    low = np.hypot(wider * np.log(of_mean.mean / of_mean.low), by_chance)
    high = np.hypot(wider * np.log(of_mean.high / of_mean.mean), by_chance)
    mean = of_mean.mean
    return of_mean._replace(low=float(mean * np.exp(-low)), high=float(mean * np.exp(high)))


def widened(by_texts: Estimate, by_turns: Typical) -> Estimate:
    """Return an interval for two errors: the sample of texts, and the measurement of the costs.

    Both errors are relative and independent, so their squares add on a log scale.
    """
    mean = by_turns.value
    if by_texts.low is None or by_texts.high is None:
        return Estimate(mean, None, None, by_texts.n)
    low = np.hypot(np.log(by_texts.mean / by_texts.low), np.log(mean / by_turns.low))
    high = np.hypot(np.log(by_texts.high / by_texts.mean), np.log(by_turns.high / mean))
    return Estimate(mean, float(mean * np.exp(-low)), float(mean * np.exp(high)), by_texts.n)


def within(speedup: Estimate, tau: Estimate) -> Estimate:
    """Return a speed-up bounded by tau: a round takes at least as long as a plain round.

    Noisy costs by context and turn may otherwise exceed the bound.
    """
    mean, low, high = min(speedup.mean, tau.mean), speedup.low, speedup.high
    if low is None or high is None:
        return Estimate(mean, None, None, speedup.n)
    most = tau.mean if tau.high is None else tau.high
    return Estimate(mean, min(low, mean), max(mean, min(high, most)), speedup.n)


def lacking(forecast: Forecast, tokens: int, width: float) -> tuple[float, int] | None:
    """Return half the relative width that texts leave to the speed-up, and the tokens needed.

    None: the width is at most `width`, or there are too few texts to tell.
    """
    low, high = forecast.by_texts.low, forecast.by_texts.high
    if low is None or high is None or forecast.texts < FEWEST:
        return None
    half = (high - low) / 2 / forecast.by_texts.mean
    if half <= width:
        return None
    return half, int(np.ceil(tokens * ((half / width) ** 2 - 1)))
