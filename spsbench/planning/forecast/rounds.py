"""Rounds in expectation, from traces, logs or an acceptance rate, as the sums of measured rounds.

The replay identity: a text of the target alone determines the acceptance chances of every draft
along it. Letters are the paper's: q target, p draft, x_t the generated token at position t. A round
that starts at position t drafts slots t, t + 1, ..., and keeps slots up to the first rejection:

- `sps` with chance min(1, p / q) of x_t: the rule keeps x with mass min(p, q), and the text has x
  with mass q (Chen et al. 2023, Theorem 1);
- `match` with p of x_t, the chance that draft and target sample the same token;
- `block` keeps i slots or more with the least of 1 and the products p / q over the first 1, ..., i
  of them: not slot by slot, yet by the text alone (Sun et al. 2024;
  docs/explanation/planning.md has the proof);
- a deterministic draft is kept while it equals the text.

The noise of each round is fresh, so the rounds of a text are a Markov chain over positions. Their
expected numbers fill the `Totals` of measured rounds. As in `loop.decode`, K is clamped to the
tokens left less one and to the draft's context. Slots beyond a text's end are drafted, not tested.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.costs import STEP, Costs
from spsbench.metrics.intervals import Floats
from spsbench.metrics.sums import Totals
from spsbench.settings.method import Drafting
from spsbench.store.traces import Along, Proposed, Written

Ints = NDArray[np.int64]
Counts = Sequence[int] | NDArray[Any]
LEAST = float(np.finfo(np.float32).tiny)  # a generated token has a probability above 0
DRAFT, TARGET = 0, 1  # parts of a round's seconds, in the order of `metrics.costs.PARTS`
UNLIMITED = 1 << 40  # tokens of a budget that is not recorded


class ReplayedRule(NamedTuple):
    """The chances of a verifier along a text of the target, by which a plan forecasts its rounds.

    `chances` maps (p, q), both [L], of the text's tokens to [L] factors whose products over the
    first 1, ..., i slots are the chance to keep i slots. With `slot_by_slot` slots are tested one
    by one; else i slots are kept with the least product, and 1 at most.
    """

    chances: Callable[[Floats, Floats], Floats]
    slot_by_slot: bool = True


RULES: Mapping[str, ReplayedRule] = {
    "sps": ReplayedRule(lambda p, q: np.minimum(p / q, 1.0)),
    "match": ReplayedRule(lambda p, q: p),
    "block": ReplayedRule(lambda p, q: p / q, slot_by_slot=False),
}
"""The verifiers that can be replayed: a new one is an entry here; all others are only measured."""


@dataclass(frozen=True, eq=False)
class Acceptances:
    """Acceptance chances along one text of L tokens, for drafts of up to M tokens.

    Args:
        kept: [L, M] chance that a round from each position keeps its first i + 1 slots or more;
            0 beyond the end of the text.
        longest: [L] tokens that a draft from each position has at most.
        overlap: [L, M] sum_x min(p, q) of each slot; None where it is unknown.
        slot_by_slot: whether the rule tests slot by slot, so that `Round.tested` applies.
        passes: [L] most slots whose distribution is computed; None: of all that are requested.
    """

    kept: Floats | NDArray[np.bool_]
    longest: Ints
    overlap: Floats | None = None
    slot_by_slot: bool = True
    passes: Ints | None = None

    @classmethod
    def sampled(
        cls,
        p: Floats,
        q: Floats | None,
        rule: str,
        most: int,
        overlap: Floats | None = None,
        stops: Counts | None = None,
    ) -> "Acceptances":
        """Return the chances of a draft whose distribution depends on the text alone.

        `p` and `q` are [L] probabilities of the generated tokens (None: q is 1; `match` ignores q),
        `rule` is a name in `RULES`, and `most` is M. `p` and `overlap` may be [L, D], of the D
        slots of a draft from each position. `stops`: [L] slots after which a schedule ends the
        draft, by the distribution of the next slot. Drafted tokens are then estimates: no trace
        holds the path behind a rejection.
        """
        chances, slot_by_slot = RULES[rule]
        targets = slots_ahead(np.ones(len(p)) if q is None else q, most)
        of_slots = chances(slots_ahead(p, most), np.maximum(targets, LEAST))
        kept = np.cumprod(of_slots, axis=1, dtype=np.float64)
        overlap = None if overlap is None else slots_ahead(overlap, most)
        if not slot_by_slot:
            kept = np.minimum(np.minimum.accumulate(kept, axis=1), 1.0)
        if stops is None:
            return cls(kept, np.full(len(p), min([most, *p.shape[1:]])), overlap, slot_by_slot)
        longest = np.asarray(stops, np.int64)
        return cls(kept, longest, overlap, slot_by_slot, longest + 1)

    @classmethod
    def deterministic(cls, hits: Counts, proposed: Counts, most: int) -> "Acceptances":
        """Return the chances, 0 and 1, of a deterministic draft of up to `most` tokens.

        `hits`: [L] first tokens of the proposal at each position that the text has too. `proposed`:
        [L] tokens of the proposal, of which a shorter draft is the beginning; `most` cuts none.
        """
        matching = np.asarray(hits, np.int64)[:, None]
        return cls(np.arange(most) < matching, np.asarray(proposed, np.int64))


def slots_ahead(values: Floats, most: int) -> Floats:
    """Return [L, most]: the values from each position on of [L], a row of [L, D]; then zeros."""
    if values.ndim == 2:
        return np.pad(values[:, :most], [(0, 0), (0, max(0, most - values.shape[1]))])
    padded = np.concatenate([values, np.zeros(most)])
    return np.lib.stride_tricks.sliding_window_view(padded, max(most, 1))[: len(values), :most]


def acceptances_of(
    text: Written, trace: Along, rule: str, most: int, schedule: str = ""
) -> Acceptances:
    """Return the chances that a traced draft's first 1, 2, ..., `most` tokens are kept.

    `rule` counts for sampled drafts alone. Beyond what was traced a draft is as long as traced.
    `schedule`: text of a schedule; its stops end drafts if they were traced, else nothing does.
    """
    if isinstance(trace, Proposed):
        proposed, hits = trace.of(most)
        return Acceptances.deterministic(hits, proposed, most)
    shape = (len(text.q), trace.depth) if trace.depth else -1
    p, overlap = (column.reshape(shape) for column in (trace.p, trace.overlap))
    return Acceptances.sampled(p, text.q, rule, most, overlap, trace.stops.get(schedule))


def room_of(length: int, budget: int = UNLIMITED, reach: int | None = None) -> Ints:
    """Return [L] the most tokens to draft from each position, as `loop.decode` does."""
    ends = budget - 1 if reach is None else min(budget - 1, reach)
    return np.maximum(ends - np.arange(length), 0)


def room_along(text: Written, trace: Along) -> Ints:
    """Return [L] the most tokens that a traced draft has from each position."""
    return room_of(len(text.q), text.budget, getattr(trace, "reach", None))


@dataclass(frozen=True, eq=False)
class Rounds:
    """The S rounds of one text in expectation over acceptances, given the text."""

    acceptances: Acceptances
    starts: Ints  # [S] positions, from the first generated token, at which a round may start
    requested: Ints  # [S] tokens requested from the drafter: K, clamped
    weights: Floats  # [S] expected number of such rounds
    variance: float = 0.0  # variance of the number of rounds
    simulations: int | None = None  # None: exact; else the number of simulated generations

    @cached_property
    def drafted(self) -> Ints:
        """Return [S] drafted tokens."""
        return np.minimum(self.requested, self.acceptances.longest[self.starts])

    def sizes(self, context: int, *, alike: bool = False) -> tuple[Ints, Floats]:
        """Return the distinct [U, 3] (requested, drafted, context // STEP), and how often, [U].

        Requested are the slots that the draft computes; how often is an expected number of rounds.
        `context` is the number of tokens of the prompt; with `alike` all contexts count as 0.
        """
        passes, drafted = self.acceptances.passes, self.drafted
        computed = self.requested
        if passes is not None:
            computed = np.minimum(computed, passes[self.starts])
        steps = (context + self.starts) // (UNLIMITED if alike else STEP)
        first, most = int(steps.min(initial=UNLIMITED)), int(computed.max(initial=0)) + 1
        span = int(steps.max(initial=0)) - first + 1
        sums = np.bincount((computed * most + drafted) * span + steps - first, weights=self.weights)
        keys = np.flatnonzero(sums)
        sizes = np.stack([keys // span // most, keys // span % most, keys % span + first], 1)
        return sizes, np.asarray(sums[keys], np.float64)

    @cached_property
    def slots(self) -> tuple[Floats, Floats]:
        """Return (kept, tested in the text): [S, most drafted] each, expected times, by start."""
        drafted, weights = self.drafted[:, None], self.weights[:, None]
        places = np.arange(int(drafted.max(initial=0)))
        kept = weights * (self.acceptances.kept[self.starts, : len(places)] * (places < drafted))
        before = np.concatenate([weights, kept], axis=1)[:, : len(places)]
        tokens_left = len(self.acceptances.longest) - self.starts[:, None]
        return kept, before * (places < np.minimum(drafted, tokens_left))

    @cached_property
    def emitted(self) -> Floats:
        """Return [S] expected tokens: one a round, and what is kept before the text's end."""
        kept, _ = self.slots
        later_tokens = len(self.acceptances.longest) - 1 - self.starts[:, None]
        return np.asarray(self.weights + (kept * (np.arange(kept.shape[1]) < later_tokens)).sum(1))

    def acceptance(self) -> tuple[float, float]:
        """Return (expected acceptances, tests); with an overlap, as `sps` would accept them."""
        kept, tested = self.slots
        if self.acceptances.overlap is None:
            return float(kept.sum()), float(tested.sum())
        overlap = self.acceptances.overlap[self.starts, : tested.shape[1]]
        return float((tested * overlap).sum()), float(tested.sum())

    def totals(self, seconds: Floats) -> Totals:
        """Return the sums that `metrics.sums.totals` returns of measured rounds, without a prefill.

        `seconds`: [parts, turns] of all rounds (`price`), of which medians over turns count.
        """
        accepted, drafted = float(self.slots[0].sum()), float(self.weights @ self.drafted)
        count, tokens = float(self.weights.sum()), float(self.emitted.sum())
        overlap, tests = self.acceptance()
        slotwise = self.acceptances.slot_by_slot
        sampled = slotwise and self.acceptances.overlap is not None
        by_turn = seconds.sum(0)
        whole, shares = float(median(by_turn)), median(seconds / by_turn)
        return Totals(
            tokens=tokens,
            rounds=count,
            drafted=drafted,
            accepted=accepted,
            overlap=overlap * sampled,
            overlap_tested=tests * sampled,
            kept=accepted * slotwise,
            tested=tests * slotwise,
            depth=drafted,
            round_tokens=tokens,
            quiet=1.0,  # `timed` and prefill stay 0: nothing was timed
            seconds=whole,
            timed_tokens=tokens,
            timed_rounds=count,
            round_seconds=whole,
            timed_depth=drafted,
            started=1.0,
            split=whole,
            draft=whole * float(shares[DRAFT]),
            target=whole * float(shares[TARGET]),
        )

    def by_position(self, slots: int) -> list[float]:
        """Return draft tokens kept at each of the first `slots` of a round, then those tested."""
        sums = np.zeros((2, slots))
        for row, tokens in zip(sums, self.slots, strict=True):
            row[: tokens.shape[1]] = tokens.sum(0)[:slots]
        return [float(n) for n in (sums * self.acceptances.slot_by_slot).flat]

    def by_depth(self, most: int) -> list[float]:
        """Return the rounds that drafted at least 1, 2, ... `most` tokens."""
        return [float(n) for n in self.weights @ (self.drafted[:, None] > np.arange(most))]


def median(turns: Floats) -> Floats:
    """Return the [...] medians of [..., T] turns; arithmetic costs have one turn."""
    return np.asarray(turns[..., 0] if turns.shape[-1] == 1 else np.median(turns, -1))


def price(
    sizes: Ints, weights: Floats, costs: Costs, drafter: Drafting, rule: str | None, batch: int = 1
) -> Floats:
    """Return [parts, turns] seconds of rounds of these sizes, each times its weight, summed.

    Parts are in the order of `metrics.costs.PARTS`. `sizes` and `weights` are [U, 3] and [U], as
    `Rounds.sizes` returns them; `rule` None is the drafter's own; `batch` texts make each round
    together, in these seconds. DataError: no costs of the drafter.
    """
    total = np.zeros_like(costs.round(drafter, 0, 0, 0, batch=batch))
    for (requested, drafted, step), weight in zip(sizes.tolist(), weights.tolist(), strict=True):
        seconds = costs.round(drafter, requested, drafted, step * STEP, batch=batch, rule=rule)
        total += weight * seconds
    return total


def rounds(acceptances: Acceptances, k: int, room: Ints) -> Rounds:
    """Return the rounds of a text of L tokens under a constant K, exactly, with their variance.

    `room` has [L] the most tokens to draft from each position. Five tokens, K = 2, each slot kept
    with chance 1/2: a round advances 1, 2 or 3 with chance 1/2, 1/4, 1/4. Rounds start at 0 .. 4
    with weights 1, 1/2, 1/2, 5/8, 9/16: 3.19 rounds, tau 5 / 3.19.
    """
    length, requested = len(acceptances.longest), np.minimum(k, room)
    drafted = np.minimum(requested, acceptances.longest)[:, None]
    kept = acceptances.kept[:, :k] * (np.arange(k) < drafted)
    if kept.dtype == np.bool_:
        advances, walk, position = (kept.sum(1) + 1).tolist(), [], 0
        while position < length:
            walk.append(position)
            position += advances[position]
        return Rounds(acceptances, np.array(walk, np.int64), requested[walk], np.ones(len(walk)))
    reached = np.concatenate([np.ones((length, 1)), kept], axis=1)
    outcomes = reached - np.concatenate([kept, np.zeros((length, 1))], axis=1)  # [L, K + 1]
    weights, variance = np.zeros(length + k + 1), 0.0
    weights[0] = 1.0
    for t in range(length):
        if weights[t]:
            weights[t + 1 : t + k + 2] += weights[t] * outcomes[t]
    if ((outcomes > 0) & (outcomes < 1)).any():
        mean, square = np.zeros(length + k + 1), np.zeros(length + k + 1)  # rounds from t on
        for t in reversed(range(length)):
            ahead = float(outcomes[t] @ mean[t + 1 : t + k + 2])
            mean[t] = 1 + ahead
            square[t] = 1 + 2 * ahead + outcomes[t] @ square[t + 1 : t + k + 2]
        variance = float(square[0] - mean[0] ** 2)
    starts = np.flatnonzero(weights[:length] > 0)
    return Rounds(acceptances, starts, requested[starts], weights[starts], variance)


def simulate_rounds(
    schedule: Any, round_type: Callable[..., Any], along: Acceptances, room: Ints, simulations: int
) -> Rounds:
    """Return the rounds under a schedule that looks back, from simulated generations.

    Only where rounds start, and with what K, is simulated: what they keep is its expectation.
    `schedule.k(history)` is asked before each round; a history has a `round_type` for each round
    (`loop.types.Round`), with token ids 0. `along` has the chances along the text, `room` [L] the
    most tokens to draft from each position. `simulations` generations have seeds 0, 1, ...
    """
    counts, numbers = Counter[tuple[int, int]](), []
    chances, longest, limits = along.kept.tolist(), along.longest.tolist(), room.tolist()
    for seed in range(simulations):
        noise, history, position = random.Random(f"replay/{seed}"), list[Any](), 0
        while position < len(longest):
            requested = min(int(schedule.k(history)), limits[position])
            drafted = min(requested, longest[position])
            u, accepted = noise.random(), 0
            while accepted < drafted and u < chances[position][accepted]:
                accepted += 1
            tested, overlap = min(accepted + 1, drafted) if along.slot_by_slot else -1, None
            if along.overlap is not None and tested >= 0:
                overlap = float(along.overlap[position, :tested].sum())
            tokens = [0] * (accepted + 1)  # their number is right, the ids are unknown
            history.append(round_type(drafted, tested, accepted, tokens, overlap, 0.0, None))
            counts[position, requested] += 1
            position += accepted + 1
        numbers.append(len(history))
    keys = np.array(sorted(counts), np.int64).reshape(-1, 2)
    weights = np.array([counts[start, k] for start, k in keys.tolist()]) / simulations
    return Rounds(along, keys[:, 0], keys[:, 1], weights, float(np.var(numbers)), simulations)


def least_cost(acceptances: Acceptances, room: Ints, cost: Floats, simulations: int) -> float:
    """Return the least cost of a text under any choice of each round's K, acceptances known.

    `cost` is [L, M + 1], that of a round from each position, by drafted tokens; `room` has [L] the
    most tokens to draft. The mean over simulations, of which each samples every position's
    acceptance once, since the target fills a rejected one; a rule that does not test slot by slot
    has one sample a start. Their seed is fixed.
    """
    length, most = len(acceptances.longest), cost.shape[1] - 1
    noise = np.random.default_rng(0).random((simulations, length + 1))
    ahead = np.zeros((simulations, length + 1))
    for t in reversed(range(length)):
        n = int(min(most, room[t], acceptances.longest[t]))
        kept = acceptances.kept[t, :n]
        after = ahead[:, np.minimum(t + 1 + np.arange(n + 1), length)]  # [simulations, N + 1]
        if acceptances.slot_by_slot:
            before = np.concatenate([[1.0], kept[:-1]])[:n]
            slots = np.divide(kept, before, out=np.zeros(n), where=before > 0)
            draws = noise[:, t : t + n]
            run = np.cumprod(draws < slots[: draws.shape[1]], axis=1).sum(axis=1)
        else:
            run = (noise[:, t, None] < kept).sum(axis=1)
        ends = np.minimum(run[:, None], np.arange(n + 1))
        ahead[:, t] = (cost[t, : n + 1] + np.take_along_axis(after, ends, axis=1)).min(axis=1)
    return float(ahead[:, 0].mean())
