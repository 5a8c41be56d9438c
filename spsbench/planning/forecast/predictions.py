"""Predictions: expected rounds of candidates in tallies of measured rounds, priced by costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from spsbench.metrics.costs import PARTS, PLAIN, Costs
from spsbench.metrics.intervals import LEVEL, NORMAL, Estimate, Floats
from spsbench.metrics.rates import RATES, baseline_gains
from spsbench.metrics.sums import AT, Tally, Totals, renumber
from spsbench.metrics.surfaces import MedianEstimate, typical
from spsbench.planning.forecast.rounds import (
    Acceptances,
    Ints,
    Rounds,
    acceptances_of,
    price,
    room_along,
    rounds,
)
from spsbench.settings.cell import constant
from spsbench.settings.method import Drafting, Method
from spsbench.spec import K_MAX, Spec
from spsbench.store.traces import Along, DraftOf, Written

LOOKUP_RULE = "match"  # the rule under which deterministic drafts are replayed
TWO_SIDED = NORMAL.inv_cdf((1 + LEVEL) / 2)
ALL_SIMULATIONS = 2000  # simulations over all texts, where a schedule looks back
FEWEST_SIMULATIONS = 20  # simulations of each text
MOST_ROWS = 2048  # texts beyond it share the rows of earlier ones

ARS = Method(PLAIN, "", constant(0))
Simulate = Callable[[Spec, Acceptances, Ints, int], Rounds]
"""(schedule, acceptances, room, number of simulations) -> the rounds of a text."""


@dataclass(kw_only=True, eq=False)
class RoundTally:
    """The expected rounds of a method and their price, added text by text; then its prediction.

    `drafter` is as the costs name it (None: the method's); `batch` texts make rounds together.
    """

    method: Method
    costs: Costs
    drafter: Drafting | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        k = self.method.k or 0
        self.priced_as = self.drafter or self.method.drafting
        self.sums = Tally(k, 0, k)
        self.simulated, self.variance, self.texts = False, 0.0, 0
        self.acceptance = np.zeros(2)
        self.parts: Floats = np.zeros(())
        self.sizes: dict[tuple[int, ...], float] = {}
        self._predicted = False

    def add(self, expected: Rounds, context: int, key: tuple[int, int]) -> None:
        """Add the rounds of a text, with their price by `costs`, to all sums.

        `context` is the number of tokens of its prompt, and `key` has the numbers of its sample and
        repeat: a row of `sums`, which samples `MOST_ROWS` apart share. RuntimeError: a prediction
        was made of these rounds already. DataError: no costs of the drafter.
        """
        if self._predicted:
            raise RuntimeError(f"{self.method}: rounds after their prediction")
        sizes, weights = expected.sizes(context, alike=len(self.costs.passes.contexts) == 1)
        rule = self.method.verifier
        seconds = price(sizes, weights, self.costs, self.priced_as, rule, self.batch)
        for size, weight in zip(map(tuple, sizes.tolist()), weights.tolist(), strict=True):
            self.sizes[size] = self.sizes.get(size, 0.0) + weight
        self.parts = self.parts + seconds
        self.acceptance += expected.acceptance()
        self.variance += expected.variance
        self.simulated |= expected.simulations is not None
        self.texts += 1
        slots = self.sums.slots
        sums, by_slot = expected.totals(seconds), expected.by_position(slots)
        key = key[0] % MOST_ROWS, key[1]
        self.sums.add_expected(key, sums, by_slot, expected.by_depth(slots))

    def add_plain(self, length: int, context: int, key: tuple[int, int]) -> None:
        """Add the rounds of ArS: one a token."""
        nothing = Acceptances(np.zeros((length, 0), np.bool_), np.zeros(length, np.int64))
        self.add(rounds(nothing, 0, nothing.longest), context, key)

    def seconds(self, batch: int) -> Floats:
        """Return [T] seconds of all texts, by turn of the costs, in batches of `batch`."""
        if batch == self.batch:
            return np.asarray(self.parts.sum(0))
        sizes = np.array(list(self.sizes), np.int64).reshape(-1, 3)
        weights, rule = np.array(list(self.sizes.values())), self.method.verifier
        return np.asarray(price(sizes, weights, self.costs, self.priced_as, rule, batch).sum(0))

    def predict(self, baseline: "Prediction | None" = None, **fields: Any) -> "Prediction":
        """Return the prediction, with its other `fields`; adding rounds later raises."""
        self._predicted = True
        return Prediction(rounds=self, baseline=baseline, **fields)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The figures of a method over texts, which come one after the other.

    Figures are those of measured rounds, under the same names; of intervals, those of
    `block_efficiency`, `mean_token_time_ms` and `speedup` are widened to what other prompts and
    other timings would have.

    Args:
        rounds: the rounds of the method, to which no more are added.
        baseline: the prediction of ArS over the same texts; None: this one is.
        new_prompts: prompts that intervals hold for; None: as many as traced; infinity: the mean's.
        exact: whether counts are exact for these texts, so that only times are estimates.
        operations: those of a drafted token over those of a target row; 0: it is looked up.
        factor: part of the gain that is left to prompts that did not choose this K.
    """

    rounds: RoundTally
    baseline: "Prediction | None" = None
    new_prompts: float | None = None
    exact: bool = True
    operations: float = 0.0
    factor: float = 1.0

    @property
    def method(self) -> Method:
        """Return the method whose rounds these are."""
        return self.rounds.method

    @property
    def texts(self) -> int:
        """Return the number of texts."""
        return self.rounds.texts

    @cached_property
    def sums(self) -> Totals:
        """Return the sums over all texts."""
        return Totals(*map(float, self.rounds.sums.rows.sum(0)[: len(Totals._fields)]))

    def figure(self, name: str) -> Estimate | None:
        """Return a figure of `RATES` over these texts; None where nothing tells it."""
        rate = RATES[name]
        jackknife = self.rounds.sums.jackknife(self.rounds.sums.rows)
        return jackknife.estimate(rate, AT[rate.denominator], rate.scale)

    @cached_property
    def alpha(self) -> Estimate | None:
        """Return the chance that a tested token is kept; None: the rule tests no slots."""
        return self.figure("alpha") or self.figure("alpha_counted")

    @property
    def right(self) -> float:
        """Return the expected acceptance rate of the pair, under any rule."""
        return float(self.rounds.acceptance[0] / max(self.rounds.acceptance[1], 1e-12))

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
        seconds = baseline.rounds.seconds(self.rounds.batch)
        return float(1e3 * np.median(seconds) / baseline.sums.tokens)

    @property
    def round_ms(self) -> float:
        """Return the time of a round."""
        return self.ms.mean * self.tau.mean

    @property
    def shares(self) -> dict[str, float]:
        """Return the shares of the time of a round, by part."""
        shares = np.median(self.rounds.parts / self.rounds.parts.sum(0), 1).tolist()
        return dict(zip(PARTS, shares, strict=True))

    @cached_property
    def tau(self) -> Estimate:
        """Return emitted tokens a round."""
        return scale(self._predicted(self.figure("block_efficiency")), self._left)

    @cached_property
    def ms(self) -> Estimate:
        """Return the decode time of a token in ms."""
        by_texts = self._predicted(self.figure("mean_token_time_ms"))
        spread = self.rounds.parts.sum(0) / self.sums.seconds * by_texts.mean
        return scale(join_errors(by_texts, typical(spread, self.rounds.costs.busy)), 1 / self._left)

    @cached_property
    def speedup(self) -> Estimate:
        """Return the speed-up over ArS, for other prompts and other timings."""
        return self.speedup_in(self.rounds.batch)

    def speedup_in(self, batch: int) -> Estimate:
        """Return the speed-up over ArS in batches of `batch` texts, its mean at most tau.

        The interval is for other prompts and timings, or None where the texts give none; in batches
        other than the tally's own it is that of tau, of single texts, and of the costs. Costs that
        have no batches price each as one text; sizes beyond theirs continue the last two.
        """
        by_texts = self.tau
        if batch == self.rounds.batch:
            baseline = (self.baseline or self).rounds.sums
            by_texts = self._predicted(
                baseline_gains(baseline, self.rounds.sums, self.method.k).get("speedup")
            )
        ratios = (self.baseline or self).rounds.seconds(batch) / self.rounds.seconds(batch)
        gained = scale(join_errors(by_texts, typical(ratios, self.rounds.costs.busy)), self._left)
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
        """Return [prompts, 2] seconds of ArS and of the candidate, in order of prompts."""
        prompts = renumber([sample for sample, _ in self.rounds.sums.keys])
        seconds = np.zeros((int(prompts.max()) + 1, 2))
        for column, tally in enumerate(((self.baseline or self).rounds.sums, self.rounds.sums)):
            np.add.at(seconds[:, column], prompts, tally.rows[:, AT["seconds"]])
        return seconds

    @property
    def _left(self) -> float:
        """Return `factor`, but no less than leaves a round one token."""
        return 1.0 if self.factor == 1 else max(self.factor, self.sums.rounds / self.sums.tokens)

    def _predicted(self, of_mean: Estimate | None) -> Estimate:
        if of_mean is None:
            raise ValueError("texts without a token")
        prompts = len({sample for sample, _ in self.rounds.sums.keys})
        return predict_for_others(
            of_mean, prompts, self.new_prompts, self.rounds.variance, self.sums.rounds
        )


def predict(
    methods: Sequence[Method],
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    costs: Costs,
    new_prompts: int | None = None,
    notify: Callable[[], None] = lambda: None,
    plain: Prediction | None = None,
    simulate: Simulate | None = None,
) -> list[Prediction]:
    """Return the predictions of one or more methods with one draft along its texts, in their order.

    `traced` has the texts of `draft`, at least one, with their traces. Intervals hold for
    `new_prompts` prompts; None: as many as traced. `notify` is called before each text. `plain` is
    the prediction of ArS over these texts, if it was made before. `simulate` makes the rounds of a
    schedule that is not constant. ValueError: as `rounds_of`. DataError: no costs of the draft.
    """
    samples = dict.fromkeys(text.key[1] for text, _ in traced)
    numbers = dict(zip(samples, range(len(samples)), strict=True))
    context = float(np.mean([text.prompt_tokens + len(text.q) / 2 for text, _ in traced]))
    tallies = [RoundTally(method=method, costs=costs) for method in methods]
    of_plain = RoundTally(method=ARS, costs=costs)
    most = max(method.k or 0 for method in methods)
    rules = {method.verifier: rule_of(method, draft) for method in methods}
    for text, trace in traced:
        notify()
        key = numbers[text.key[1]], text.key[2]
        if plain is None:
            of_plain.add_plain(len(text.q), text.prompt_tokens, key)
        acceptances = {
            name: acceptances_of(text, trace, rule, most) for name, rule in rules.items()
        }
        for tally in tallies:
            of_rule = acceptances[tally.method.verifier]
            expected = rounds_of(tally.method, draft, text, trace, len(traced), of_rule, simulate)
            tally.add(expected, text.prompt_tokens, key)
    baseline = plain or of_plain.predict(new_prompts=new_prompts)
    return [
        tally.predict(
            baseline,
            new_prompts=new_prompts,
            exact=draft.exact,
            # c, a ratio of times, stands for what a drafted token computes in rows of the target
            operations=costs.relative(tally.priced_as, tally.method.k or 1, context).value
            * draft.sampled,
        )
        for tally in tallies
    ]


def rounds_of(
    method: Method,
    draft: DraftOf,
    text: Written,
    trace: Along,
    texts: int,
    of_rule: Acceptances | None = None,
    simulate: Simulate | None = None,
) -> Rounds:
    """Return the rounds of a method along a text: exact for a constant K, else from `simulate`.

    `texts` is the number of traced texts, among which simulations are divided. `of_rule` has the
    acceptance chances under the method's rule; None: they are computed. ValueError: a schedule that
    is not constant, without `simulate`.
    """
    room, rule = room_along(text, trace), rule_of(method, draft)
    if method.k is not None:
        return rounds(of_rule or acceptances_of(text, trace, rule, method.k), method.k, room)
    if method.schedule is None or simulate is None:
        raise ValueError(f"{method}: expected a schedule, and how its rounds are simulated")
    acceptances = acceptances_of(text, trace, rule, draft.most or K_MAX, str(method.schedule))
    simulations = max(FEWEST_SIMULATIONS, ALL_SIMULATIONS // texts)
    return simulate(method.schedule, acceptances, room, simulations)


def tau_of(
    method: Method,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    simulate: Simulate | None = None,
) -> float:
    """Return a method's block efficiency over texts: tokens / expected rounds; as `rounds_of`."""
    expected = [rounds_of(method, draft, *pair, len(traced), simulate=simulate) for pair in traced]
    return sum(len(text.q) for text, _ in traced) / sum(float(r.weights.sum()) for r in expected)


def rule_of(method: Method, draft: DraftOf) -> str:
    """Return the rule of a replay: the method's if `draft` is sampled, else `LOOKUP_RULE`."""
    return method.verifier if draft.sampled else LOOKUP_RULE


def selection_factor(seconds: Floats) -> float:
    """Return what part of the best candidate's gain is left on prompts that did not choose it.

    `seconds`: [candidates, prompts, 2] of ArS and of the candidate (`Prediction.by_prompt`). The
    best of several looks better on the prompts that it was chosen by than it is. Each prompt is
    left out in turn, and counted with the candidate that the others choose. That overstates what is
    lost where a prompt that decides the choice is left out, so half of it counts, on a log scale.
    At most 1, which it is with less than two candidates or prompts.
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


def scale(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate with its mean and interval times `factor`."""
    low, high = (None if e is None else e * factor for e in (estimate.low, estimate.high))
    return Estimate(estimate.mean * factor, low, high, estimate.n)


def predict_for_others(
    of_mean: Estimate, texts: int, new_prompts: float | None, variance: float, rounds: float
) -> Estimate:
    """Return an interval for the figure that other prompts will have, from that of the mean.

    `texts` is the number of traced prompts, `new_prompts` that of others; None: as many; infinity:
    the interval of the mean. A figure of few prompts varies by their texts, and by the acceptances
    along each text: `variance` is that of the number of rounds given the texts, and `rounds` the
    expected number, both summed over texts. Without an interval of the mean there is none.
    """
    new = texts if new_prompts is None else new_prompts
    by_chance = TWO_SIDED * float(np.sqrt(variance * texts / new)) / rounds
    wider = float(np.sqrt(1 + texts / new))
    return _with_errors(of_mean.mean, of_mean, by_chance, by_chance, wider)


def join_errors(by_texts: Estimate, by_turns: MedianEstimate) -> Estimate:
    """Return an interval for two errors: the sample of texts, and the measurement of the costs."""
    mean, low, high = by_turns.value, by_turns.low, by_turns.high
    return _with_errors(mean, by_texts, np.log(mean / low), np.log(high / mean))


def _with_errors(
    mean: float, by_texts: Estimate, below: float, above: float, wider: float = 1.0
) -> Estimate:
    """Return `mean` with the error of texts, times `wider`, and another, both on a log scale.

    Errors are relative and independent, so their squares add. The other one is `below`, which is
    log(mean / low), and `above`, log(high / mean). Without an interval of the texts there is none.
    """
    if by_texts.low is None or by_texts.high is None:
        return Estimate(mean, None, None, by_texts.n)
    low = np.hypot(wider * np.log(by_texts.mean / by_texts.low), below)
    high = np.hypot(wider * np.log(by_texts.high / by_texts.mean), above)
    return Estimate(mean, float(mean * np.exp(-low)), float(mean * np.exp(high)), by_texts.n)
