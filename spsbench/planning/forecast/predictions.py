"""Predictions: expected rounds of candidates in tallies of measured rounds, priced by costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spsbench.metrics.costs import PARTS, PLAIN, Costs
from spsbench.metrics.intervals import LEVEL, NORMAL, Estimate, Floats
from spsbench.metrics.rates import RATES, gains
from spsbench.metrics.sums import AT, Tally, Totals, numbered
from spsbench.metrics.surfaces import Typical, typical
from spsbench.planning.forecast.rounds import (
    Acceptances,
    Ints,
    Rounds,
    acceptances_of,
    price,
    room_along,
    rounds,
)
from spsbench.spec import K_MAX
from spsbench.store.traces import Along, DraftOf, Written

LOOKUP_RULE = "match"  # the rule under which deterministic drafts are replayed
TWO_SIDED = NORMAL.inv_cdf((1 + LEVEL) / 2)
ALL_SIMULATIONS = 2000  # simulations over all texts, where a schedule looks back
FEWEST_SIMULATIONS = 20  # of a text
MOST_ROWS = 2048  # texts beyond it share the rows of earlier ones


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method to speculate that could be run.

    Args:
        draft: name of the draft in trace and costs.
        verifier: the rule.
        k: tokens a round, where the schedule is constant.
        schedule: spec of a schedule that is not constant, and how its rounds are simulated, from
            chances, room and a number of simulations.
    """

    draft: str
    verifier: str
    k: int | None = None
    schedule: tuple[str, Callable[[Acceptances, Ints, int], Rounds]] | None = None

    @property
    def group(self) -> str:
        """Return the draft and the rule: a name of candidates that differ in K or schedule."""
        return f"{self.draft}, {self.verifier}"

    @property
    def method(self) -> str:
        """Return a name of the method: all fields but K."""
        return self.group if self.schedule is None else f"{self.group}, {self.schedule[0]}"

    def __str__(self) -> str:
        depth = f"K = {self.k}" if self.schedule is None else self.schedule[0]
        return f"{self.draft}, {depth}, {self.verifier}"


ARS = Candidate(draft=PLAIN, verifier="", k=0)


@dataclass(kw_only=True, eq=False)
class Prediction:
    """The expected rounds of a candidate over texts, which come one after the other.

    Figures are those of measured rounds, under the same names; of intervals, those of
    `block_efficiency`, `mean_token_time_ms` and `speedup` are widened to what other prompts and
    other timings would have.

    Args:
        baseline: the prediction of ArS over the same texts, added before; None: this one is.
        drafter: its name in the costs; the default is that of the candidate.
        batch: texts that make their rounds together.
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced;
            infinity: the intervals are those of the mean.
        exact: whether counts are exact for these texts, so that only times are estimates.
        operations: of a drafted token over those of a row of the target; 0: it is looked up.
        factor: part of the gain that is left to prompts that did not choose this K.
    """

    candidate: Candidate
    costs: Costs
    baseline: "Prediction | None" = None
    drafter: str = ""
    batch: int = 1
    new_prompts: float | None = None
    exact: bool = True
    operations: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        k = self.candidate.k or 0
        self.drafter = self.drafter or self.candidate.draft
        self.tally = Tally(k, 0, k)
        self.simulated, self.variance, self.texts = False, 0.0, 0
        self._acceptance = np.zeros(2)
        self._parts: Floats = np.zeros(())
        self._sizes: dict[tuple[int, ...], float] = {}

    def add(self, expected: Rounds, context: int, key: tuple[int, int]) -> None:
        """Add the rounds of a text.

        Args:
            context: tokens of its prompt.
            key: numbers of its sample and repeat.
        """
        sizes, weights = expected.sizes(context, alike=len(self.costs.passes.contexts) == 1)
        rule = self.candidate.verifier
        seconds = price(sizes, weights, self.costs, self.drafter, rule, self.batch)
        for size, weight in zip(map(tuple, sizes.tolist()), weights.tolist(), strict=True):
            self._sizes[size] = self._sizes.get(size, 0.0) + weight
        self._parts = self._parts + seconds
        self._acceptance += expected.acceptance()
        self.variance += expected.variance
        self.simulated |= expected.simulations is not None
        self.texts += 1
        slots = self.tally.slots
        sums, by_slot = expected.totals(seconds), expected.by_position(slots)
        key = key[0] % MOST_ROWS, key[1]
        self.tally.add_expected(key, sums, by_slot, expected.by_depth(slots))

    def add_plain(self, length: int, context: int, key: tuple[int, int]) -> None:
        """Add the rounds of ArS: one a token."""
        nothing = Acceptances(np.zeros((length, 0), np.bool_), np.zeros(length, np.int64))
        self.add(rounds(nothing, 0, nothing.longest), context, key)

    @cached_property
    def sums(self) -> Totals:
        """Return the sums over all texts."""
        return Totals(*map(float, self.tally.rows.sum(0)[: len(Totals._fields)]))

    def figure(self, name: str) -> Estimate | None:
        """Return a figure of `RATES` over these texts."""
        rate = RATES[name]
        jackknife = self.tally.jackknife(self.tally.rows)
        return jackknife.estimate(rate, AT[rate.denominator], rate.scale)

    @cached_property
    def alpha(self) -> Estimate | None:
        """Return the chance that a tested token is kept; None: the rule tests no slots."""
        return self.figure("alpha") or self.figure("alpha_counted")

    @property
    def right(self) -> float:
        """Return the expected acceptance rate of the pair, under any rule."""
        return float(self._acceptance[0] / max(self._acceptance[1], 1e-12))

    @property
    def drafted(self) -> float:
        """Return the drafted tokens of a round."""
        return self.sums.drafted / self.sums.rounds

    @property
    def work(self) -> float:
        """Return operations over those of plain sampling (Leviathan et al. 2023, Theorem 3.11)."""
        sums = self.sums
        return (sums.rounds + sums.drafted * (1 + self.operations)) / sums.tokens / self._left

    @property
    def plain_ms(self) -> float:
        """Return the decode time of a token by ArS."""
        baseline = self.baseline or self
        return float(1e3 * np.median(baseline.seconds_in(self.batch)) / baseline.sums.tokens)

    @property
    def round_ms(self) -> float:
        """Return the time of a round."""
        return self.ms.mean * self.tau.mean

    @property
    def shares(self) -> dict[str, float]:
        """Return the shares of the time of a round, by part."""
        shares = np.median(self._parts / self._parts.sum(0), 1).tolist()
        return dict(zip(PARTS, shares, strict=True))

    @cached_property
    def tau(self) -> Estimate:
        """Return emitted tokens a round."""
        return times(self._predicted(self.figure("block_efficiency")), self._left)

    @cached_property
    def ms(self) -> Estimate:
        """Return the decode time of a token in ms."""
        by_texts = self._predicted(self.figure("mean_token_time_ms"))
        spread = self._parts.sum(0) / self.sums.seconds * by_texts.mean
        return times(widened(by_texts, typical(spread, self.costs.busy)), 1 / self._left)

    @cached_property
    def speedup(self) -> Estimate:
        """Return the speed-up over ArS, for other prompts and other timings."""
        return self.speedup_in(self.batch)

    def speedup_in(self, batch: int) -> Estimate:
        """Return the speed-up over ArS in batches of a size; tau does not depend on it."""
        by_texts = self.tau
        if batch == self.batch:
            baseline = (self.baseline or self).tally
            by_texts = self._predicted(gains(baseline, self.tally, self.candidate.k).get("speedup"))
        ratios = (self.baseline or self).seconds_in(batch) / self.seconds_in(batch)
        gained = times(widened(by_texts, typical(ratios, self.costs.busy)), self._left)
        # a round takes at least as long as a plain one, which noisy costs may deny
        mean, low, high = min(gained.mean, self.tau.mean), gained.low, gained.high
        if low is not None and high is not None:
            low, high = min(low, mean), max(mean, min(high, self.tau.high or self.tau.mean))
        return Estimate(mean, low, high, gained.n)

    @property
    def gain(self) -> float:
        """Return the mean speed-up over these texts."""
        plain, sums = (self.baseline or self).sums, self.sums
        return plain.seconds / plain.tokens / (sums.seconds / sums.tokens)

    def by_prompt(self) -> Floats:
        """Return [prompts, 2] seconds of ArS and of the candidate."""
        prompts = numbered([sample for sample, _ in self.tally.keys])
        seconds = np.zeros((int(prompts.max()) + 1, 2))
        for column, tally in enumerate(((self.baseline or self).tally, self.tally)):
            np.add.at(seconds[:, column], prompts, tally.rows[:, AT["seconds"]])
        return seconds

    def seconds_in(self, batch: int) -> Floats:
        """Return [turns] seconds of all texts, where each batch has so many."""
        if batch == self.batch:
            return np.asarray(self._parts.sum(0))
        sizes = np.array(list(self._sizes), np.int64).reshape(-1, 3)
        weights = np.array(list(self._sizes.values()))
        rule = self.candidate.verifier
        return np.asarray(price(sizes, weights, self.costs, self.drafter, rule, batch).sum(0))

    @property
    def _left(self) -> float:
        """Return `factor`, but no less than leaves a round one token."""
        sums = self.sums
        return 1.0 if self.factor == 1 else max(self.factor, sums.rounds / sums.tokens)

    def _predicted(self, of_mean: Estimate | None) -> Estimate:
        if of_mean is None:
            raise ValueError("texts without a token")
        prompts = len({sample for sample, _ in self.tally.keys})
        return predicted(of_mean, prompts, self.new_prompts, self.variance, self.sums.rounds)


def predict(
    candidates: Sequence[Candidate],
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    costs: Costs,
    new_prompts: int | None = None,
    notify: Callable[[], None] = lambda: None,
    plain: Prediction | None = None,
) -> list[Prediction]:
    """Return the predictions of candidates with one draft along its texts.

    Args:
        new_prompts: prompts whose figures the intervals are to hold; None: as many as traced.
        notify: is called before each text.
        plain: the prediction of ArS over these texts, if it was made before.
    """
    samples = dict.fromkeys(text.key[1] for text, _ in traced)
    numbers = dict(zip(samples, range(len(samples)), strict=True))
    context = float(np.mean([text.prompt_tokens + len(text.q) / 2 for text, _ in traced]))
    baseline = plain or Prediction(candidate=ARS, costs=costs, new_prompts=new_prompts)
    predictions = [
        Prediction(
            candidate=candidate,
            costs=costs,
            baseline=baseline,
            new_prompts=new_prompts,
            exact=draft.exact,
            # c, a ratio of times, stands for what a drafted token computes in rows of the target
            operations=costs.relative(candidate.draft, candidate.k or 1, context).value
            * draft.sampled,
        )
        for candidate in candidates
    ]
    most = max(candidate.k or 0 for candidate in candidates)
    rules = {candidate.verifier: rule_of(candidate, draft) for candidate in candidates}
    for text, trace in traced:
        notify()
        key = numbers[text.key[1]], text.key[2]
        if plain is None:
            baseline.add_plain(len(text.q), text.prompt_tokens, key)
        acceptances = {
            name: acceptances_of(text, trace, rule, most) for name, rule in rules.items()
        }
        for prediction in predictions:
            candidate = prediction.candidate
            of_rule = acceptances[candidate.verifier]
            expected = rounds_of(candidate, draft, text, trace, len(traced), of_rule)
            prediction.add(expected, text.prompt_tokens, key)
    return predictions


def rounds_of(
    candidate: Candidate,
    draft: DraftOf,
    text: Written,
    trace: Along,
    texts: int,
    of_rule: Acceptances | None = None,
) -> Rounds:
    """Return the rounds of a candidate along a text; `of_rule`: probabilities under its rule."""
    room, rule = room_along(text, trace), rule_of(candidate, draft)
    if candidate.schedule is None:
        k = candidate.k or 0
        return rounds(of_rule or acceptances_of(text, trace, rule, k), k, room)
    name, simulate = candidate.schedule
    acceptances = acceptances_of(text, trace, rule, draft.most or K_MAX, name)
    return simulate(acceptances, room, max(FEWEST_SIMULATIONS, ALL_SIMULATIONS // texts))


def tau_of(candidate: Candidate, draft: DraftOf, traced: Sequence[tuple[Written, Along]]) -> float:
    """Return the block efficiency alone, which needs no costs."""
    expected = [rounds_of(candidate, draft, text, trace, len(traced)) for text, trace in traced]
    return sum(len(text.q) for text, _ in traced) / sum(float(r.weights.sum()) for r in expected)


def rule_of(candidate: Candidate, draft: DraftOf) -> str:
    """Return the rule under which a candidate is replayed."""
    return candidate.verifier if draft.sampled else LOOKUP_RULE


def selection_factor(seconds: Floats) -> float:
    """Return what part of the gain of the best candidate is left on prompts that did not choose it.

    The best of several looks better on the prompts that it was chosen by than it is. Each prompt is
    left out in turn, and counted with the candidate that the others choose. That overstates what is
    lost where a prompt that decides the choice is left out, so half of it counts, on a log scale.

    Args:
        seconds: [candidates, prompts, 2] of ArS and of the candidate (`Prediction.by_prompt`).
    """
    count = seconds.shape[1]
    if len(seconds) < 2 or count < 2:
        return 1.0
    total = seconds.sum(1)
    others = total[:, None] - seconds
    chosen = (others[..., 0] / others[..., 1]).argmax(0)
    unseen = seconds[chosen, np.arange(count)].sum(0)
    best = (total[:, 0] / total[:, 1]).max()
    return float(min(1.0, unseen[0] / unseen[1] / best) ** 0.5)


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate in another unit."""
    low, high = (None if e is None else e * factor for e in (estimate.low, estimate.high))
    return Estimate(estimate.mean * factor, low, high, estimate.n)


def predicted(
    of_mean: Estimate, texts: int, new_prompts: float | None, variance: float, rounds: float
) -> Estimate:
    """Return an interval for the figure that other prompts will have, from that of the mean.

    A figure of few prompts varies by their texts, and by the acceptances along each text.

    Args:
        texts: traced prompts.
        new_prompts: other prompts; None: as many; infinity: the interval of the mean.
        variance: of the number of rounds, given the traced texts, summed over them.
        rounds: expected number of rounds, summed likewise.
    """
    new = texts if new_prompts is None else new_prompts
    by_chance = TWO_SIDED * float(np.sqrt(variance * texts / new)) / rounds
    wider = float(np.sqrt(1 + texts / new))
    return _with_errors(of_mean.mean, of_mean, by_chance, by_chance, wider)


def widened(by_texts: Estimate, by_turns: Typical) -> Estimate:
    """Return an interval for two errors: the sample of texts, and the measurement of the costs."""
    mean, low, high = by_turns.value, by_turns.low, by_turns.high
    return _with_errors(mean, by_texts, np.log(mean / low), np.log(high / mean))


def _with_errors(
    mean: float, by_texts: Estimate, below: float, above: float, wider: float = 1.0
) -> Estimate:
    """Return `mean` with the error of texts, times `wider`, and another, both on a log scale.

    Errors are relative and independent, so their squares add.
    """
    if by_texts.low is None or by_texts.high is None:
        return Estimate(mean, None, None, by_texts.n)
    low = np.hypot(wider * np.log(by_texts.mean / by_texts.low), below)
    high = np.hypot(wider * np.log(by_texts.high / by_texts.mean), above)
    return Estimate(mean, float(mean * np.exp(-low)), float(mean * np.exp(high)), by_texts.n)
