"""The distribution of a text's rounds, for any K and any schedule, without running a model.

The acceptances along a text (`acceptance`) are independent, so its rounds are a Markov chain over
positions and the schedule's state: one pass along the text gives the distribution. Edge cases
follow `loop.decode`: K is clamped to the tokens left less one and to the draft's context, and
tokens drafted beyond the end of a text are counted before the cut. A schedule (`Policy`) is a
constant K or depends on earlier rounds.
"""

import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.acceptance_chances import Chances, Stopped
from spsbench.store.trace_records import Along, Drawn, Written


class Turn(NamedTuple):
    """A replayed round as a schedule sees it: `loop.types.Round`, field by field.

    `tokens` holds zeros: the count is right, the ids are unknown. Times are unknown.
    """

    drafted: int
    tested: int
    accepted: int
    tokens: list[int]
    overlap: float | None
    seconds: float = 0.0
    finish: None = None
    laws: None = None
    tree: None = None
    processor: None = None
    experts: None = None
    passes: int = 1
    text: None = None
    size: None = None
    by_rule: bool = False

    @property
    def emitted(self) -> int:
        """Return the number of emitted tokens."""
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Return the number of drafted tokens: the draft is a chain."""
        return self.drafted

    @property
    def full(self) -> bool:
        """Return whether no drafted token was rejected."""
        return self.accepted == self.drafted


class Policy(Protocol):
    """A schedule as a state machine: a state, K in a state, and the state after a round."""

    def begin(self) -> Hashable:
        """Return the state before the first round."""

    def k(self, state: Any) -> int:
        """Return the number of tokens to draft."""

    def after(self, state: Any, turn: Turn) -> Hashable:
        """Return the state after a round. Equal states decide alike in all later rounds."""


@dataclass(frozen=True)
class Always:
    """The same K in every round."""

    lookahead: int

    def begin(self) -> Hashable:
        """Return None: a constant has no state."""
        return None

    def k(self, state: Any) -> int:
        """Return K."""
        return self.lookahead

    def after(self, state: Any, turn: Turn) -> Hashable:
        """Return None: a constant has no state."""
        return None


class Past:
    """A history, equal to every history after which the schedule decides alike."""

    def __init__(self, turns: tuple[Turn, ...], key: Hashable) -> None:
        self.turns, self.key = turns, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Past) and self.key == other.key


class Growing:
    """A schedule of the decoding loop over one growing list of rounds: for one simulation."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def begin(self) -> Hashable:
        """Return an empty history."""
        self._turns: list[Turn] = []
        return None

    def k(self, state: Any) -> int:
        """Return the schedule's K."""
        return int(self._schedule.k(self._turns))

    def after(self, state: Any, turn: Turn) -> Hashable:
        """Return the history with the round appended."""
        self._turns.append(turn)
        return None


class Follows:
    """A schedule of the decoding loop: `k(history)`, a function of the rounds so far.

    A schedule with `memory(history) -> Hashable`, the part of the past that determines all later
    decisions, is replayed exactly for texts of any length: histories with the same memory are one
    state. Without `memory` every history is a state of its own, and exact replay soon has too many
    states.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self._memory = getattr(schedule, "memory", None)

    @property
    def forgets(self) -> bool:
        """Return whether different histories may share a state."""
        return self._memory is not None

    def begin(self) -> Hashable:
        """Return an empty history."""
        return self._past(())

    def k(self, state: Past) -> int:
        """Return the schedule's K."""
        return int(self.schedule.k(state.turns))

    def after(self, state: Past, turn: Turn) -> Hashable:
        """Return the history with the round appended."""
        return self._past((*state.turns, turn))

    def _past(self, turns: tuple[Turn, ...]) -> Past:
        if self._memory is None:
            return Past(turns, tuple((turn.drafted, turn.accepted) for turn in turns))
        return Past(turns, self._memory(turns))


STATES = 20_000  # states of positions and schedule; above, simulation replaces the exact replay
NEGLIGIBLE = 1e-13  # smaller chances are dropped
SHORT = 10  # tokens of a text with few enough histories for an exact replay
SIMULATIONS = 200  # simulated generations


class Span(NamedTuple):
    """The range of positions of a text's rounds; positions count from the first generated token."""

    length: int  # generated tokens
    budget: int  # most tokens allowed: `max_new_tokens`, or the room in the target's context
    reach: int | None = None  # position at which the draft's context is full; None = never

    def room(self, at: int) -> int:
        """Return the most tokens to draft in a round that starts at `at`: `loop.decode.room`."""
        ends = self.budget - 1 if self.reach is None else min(self.budget - 1, self.reach)
        return max(0, ends - at)


def span_of(text: Written, along: Along) -> Span:
    """Return the range of a text's rounds, with the end of the draft's own context."""
    reach = along.reach if isinstance(along, Drawn) else None
    return Span(len(text.q), text.budget, reach)


class Start(NamedTuple):
    """Rounds from one position with a given number of drafted tokens, over all paths."""

    position: int
    requested: int  # K, clamped; n + 1 where a schedule stops a draft after n by the next law
    drafted: int
    chance: float  # chance that the round occurs
    tested: float  # expected tested tokens times `chance`, under rules that test slot by slot
    accepted: float


@dataclass(frozen=True)
class RoundDistribution:
    """The distribution of the rounds of a text: expectations over acceptances, given the text."""

    starts: tuple[Start, ...]
    rounds: Floats  # [R + 1] the chance of each number of rounds
    emitted: int
    looked: Floats  # [L] expected number of tests of the slot at each position
    unknown: float = 0.0  # expected drafted slots beyond the trace; none counts as kept
    simulations: int | None = None  # None: exact; else the number of simulated generations

    @property
    def mean_rounds(self) -> float:
        """Return the expected number of rounds."""
        return float(self.rounds @ np.arange(len(self.rounds)))

    @property
    def variance(self) -> float:
        """Return the variance of the number of rounds over acceptances."""
        n = np.arange(len(self.rounds))
        return float(self.rounds @ (n - self.mean_rounds) ** 2)

    @property
    def drafted(self) -> float:
        """Return the expected number of drafted tokens."""
        return sum(start.chance * start.drafted for start in self.starts)

    @property
    def tested(self) -> float:
        """Return the expected number of tested tokens."""
        return sum(start.tested for start in self.starts)

    @property
    def accepted(self) -> float:
        """Return the expected number of accepted tokens, before the cut."""
        return sum(start.accepted for start in self.starts)

    def cost(self, of: Callable[[int, int], float]) -> float:
        """Return the expected sum over the rounds of `of(drafted, position)`."""
        return sum(start.chance * of(start.drafted, start.position) for start in self.starts)


def replay(
    chances: Chances, span: Span, policy: Policy, simulations: int = SIMULATIONS
) -> RoundDistribution:
    """Return the distribution of the rounds of one text.

    Exact for a schedule with `memory` (`Follows`) while positions and states are few (`STATES`),
    and for any schedule on a short text. Otherwise `simulations` generations with fixed seeds, the
    number in `RoundDistribution.simulations`.
    """
    if isinstance(policy, Always):
        return _constant(chances, span, policy.lookahead)
    if isinstance(policy, Follows) and not policy.forgets and span.length > SHORT:
        return simulate(chances, span, Growing(policy.schedule), simulations)
    exact = _exact(chances, span, policy)
    return exact if exact is not None else simulate(chances, span, policy, simulations)


def _constant(chances: Chances, span: Span, k: int) -> RoundDistribution:
    """Return the distribution for a constant K, vectorised over positions."""
    length = span.length
    kept = np.zeros((length, k))  # chance that i + 1 slots or more are kept
    requested = np.minimum(k, [span.room(at) for at in range(length)]).astype(np.int64)
    drafted, unknown = np.zeros(length, np.int64), np.zeros(length)
    for at in range(length):
        slots = chances.slots(at, int(requested[at])) if requested[at] else np.zeros(0)
        drafted[at], unknown[at] = len(slots), np.isnan(slots).sum()
        kept[at, : len(slots)] = np.nan_to_num(slots, nan=0.0)
    np.cumprod(kept, axis=1, out=kept)
    reached = np.concatenate([np.ones((length, 1)), kept], axis=1)
    outcomes = reached - np.concatenate([kept, np.zeros((length, 1))], axis=1)  # [L, k + 1]

    ways = np.zeros((length + 1, length + 1))  # [position, rounds so far]
    ways[0, 0] = 1.0
    for at in range(length):
        inside = min(k + 1, length - at)
        ends = outcomes[at, :inside].copy()
        ends[-1] += outcomes[at, inside:].sum()  # rounds end with the text
        ways[at + 1 : at + 1 + inside, 1:] += ends[:, None] * ways[at, :-1]
    weight = ways[:length].sum(1)
    looked, starts = np.zeros(length), []
    for at in map(int, np.flatnonzero(weight > 0)):
        n, chance = int(drafted[at]), float(weight[at])
        ahead = looked[at : at + n]
        ahead += chance * reached[at, : len(ahead)]
        sums = chance * reached[at, :n].sum(), chance * kept[at].sum()
        starts.append(Start(at, int(requested[at]), n, chance, *map(float, sums)))
    return RoundDistribution(tuple(starts), ways[length], length, looked, float(weight @ unknown))


def _exact(chances: Chances, span: Span, policy: Policy) -> RoundDistribution | None:
    length = span.length
    ways: list[dict[Hashable, Floats]] = [
        {} for _ in range(length)
    ]  # state -> [R] by rounds so far
    rounds = np.zeros(length + 1)
    tally = Tally(length)
    if length == 0:
        return RoundDistribution((), np.ones(1), 0, np.zeros(0))
    ways[0][policy.begin()] = np.eye(1, length + 1)[0]
    states = 1
    for at in range(length):
        for state, mass in ways[at].items():
            turns = Turns(chances, at, min(policy.k(state), span.room(at)))
            weight = float(mass.sum())
            tally.add(turns, weight)
            grown = np.roll(mass, 1)  # no text takes more rounds than it has tokens
            for accepted, chance in enumerate(turns.outcomes):
                if chance * weight < NEGLIGIBLE:
                    continue
                end = at + accepted + 1
                if end >= length:
                    rounds += chance * grown
                    continue
                turn = turns.turn(accepted, chances)
                then = policy.after(state, turn)
                if then not in ways[end]:
                    ways[end][then] = np.zeros(length + 1)
                    states += 1
                ways[end][then] += chance * grown
        ways[at] = {}
        if states > STATES:
            return None
    return tally.law(rounds)


def simulate(
    chances: Chances, span: Span, policy: Policy, simulations: int = SIMULATIONS
) -> RoundDistribution:
    """Return the distribution from simulated generations."""
    tally = Tally(span.length)
    counts = np.zeros(span.length + 1)
    for seed in range(simulations):
        coins = random.Random(f"replay/{seed}")
        at, state, count = 0, policy.begin(), 0
        while at < span.length:
            turns = Turns(chances, at, min(policy.k(state), span.room(at)))
            tally.add(turns, 1 / simulations)
            accepted = turns.sample(coins)
            state = policy.after(state, turns.turn(accepted, chances))
            at, count = at + accepted + 1, count + 1
        counts[count] += 1 / simulations
    return replace(tally.law(counts), simulations=simulations)


class Turns:
    """The round from one position with a given K, and its outcomes."""

    def __init__(self, chances: Chances, at: int, k: int) -> None:
        slots = chances.slots(at, k) if k > 0 else np.zeros(0)
        requested = min(k, len(slots) + 1) if isinstance(chances, Stopped) else k
        self.at, self.requested, self.drafted = at, requested, len(slots)
        acceptances = np.nan_to_num(slots, nan=0.0)
        self.kept = np.cumprod(acceptances)  # [N] chance that i + 1 or more are kept
        self.reached = np.concatenate([[1.0], self.kept])  # [N + 1]
        self.outcomes = self.reached - np.concatenate([self.kept, [0.0]])  # [N + 1]
        self.unknown = int(np.isnan(slots).sum())
        self.one_by_one = chances.one_by_one

    def turn(self, accepted: int, chances: Chances) -> Turn:
        """Return the round in which `accepted` tokens were kept."""
        tested = min(accepted + 1, self.drafted)
        shared = [chances.overlap(self.at + i) for i in range(tested)]
        overlap = sum(s for s in shared if s is not None) if None not in shared else None
        counts = self.drafted, tested if self.one_by_one else -1, accepted
        return Turn(*counts, [0] * (accepted + 1), overlap if self.one_by_one else None)

    def sample(self, coins: random.Random) -> int:
        """Sample the number of tokens kept."""
        u = coins.random()
        return int((u < self.kept).sum())


class Tally:
    """Sums over the rounds of a text."""

    def __init__(self, length: int) -> None:
        self._looked = np.zeros(length)
        self._sums: dict[tuple[int, int, int], Floats] = {}
        self._unknown = 0.0

    def add(self, turns: Turns, weight: float) -> None:
        """Add a round with its chance."""
        if weight == 0:
            return
        key = turns.at, turns.requested, turns.drafted
        counts = np.array([1.0, turns.reached[: turns.drafted].sum(), turns.kept.sum()])
        self._sums[key] = self._sums.get(key, np.zeros(3)) + weight * counts
        self._unknown += weight * turns.unknown
        ahead = self._looked[turns.at : turns.at + turns.drafted]
        ahead += weight * turns.reached[: len(ahead)]

    def law(self, rounds: Floats) -> RoundDistribution:
        """Return the distribution from all sums."""
        starts = tuple(Start(*key, *map(float, sums)) for key, sums in sorted(self._sums.items()))
        return RoundDistribution(starts, rounds, len(self._looked), self._looked, self._unknown)


def pooled_tau(laws: Iterable[RoundDistribution]) -> float:
    """Return the block efficiency over texts: summed emitted tokens by summed expected rounds."""
    every = list(laws)
    return sum(law.emitted for law in every) / sum(law.mean_rounds for law in every)
