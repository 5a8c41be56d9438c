"""The law of the rounds that a text takes, for any K and any schedule, without running a model.

The coins of a text (`chances`) are independent, so its rounds are a Markov chain over positions and
the schedule's state: one pass along the text gives the law. Edges are those of `loop.decode`: K is
clamped to the tokens left less one and to the draft's context, and what was drafted beyond the end
of a text is counted before the cut.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.acceptance import Chances
from spsbench.store.trace_records import Along, Drawn, Written

# How many tokens the next round drafts: a constant, or a schedule that looks back.


class Turn(NamedTuple):
    """A round as a schedule may see it in a replay: `loop.types.Round`, field by field.

    `tokens` holds zeros: how many there are is right, which ones is not told. Times are not known.
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

    @property
    def depth(self) -> int:
        """All that was drafted: a chain."""
        return self.drafted

    @property
    def full(self) -> bool:
        """Whether no drafted token was rejected."""
        return self.accepted == self.drafted


class Policy(Protocol):
    """A schedule as a machine: a state, K in it, and the state after a round."""

    def begin(self) -> Hashable:
        """The state before the first round."""

    def k(self, state: Any) -> int:
        """Tokens to draft."""

    def after(self, state: Any, turn: Turn) -> Hashable:
        """The state after a round. States that are equal decide alike for ever."""


@dataclass(frozen=True)
class Always:
    """The same K in every round."""

    lookahead: int

    def begin(self) -> Hashable:
        """Nothing is remembered."""
        return None

    def k(self, state: Any) -> int:
        """K."""
        return self.lookahead

    def after(self, state: Any, turn: Turn) -> Hashable:
        """Nothing is remembered."""
        return None


class Past:
    """A history; equal to another from which the schedule will decide alike."""

    def __init__(self, turns: tuple[Turn, ...], key: Hashable) -> None:
        self.turns, self.key = turns, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Past) and self.key == other.key


class Growing:
    """A schedule of the loop over one list that grows, as the loop has it: for one throw."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def begin(self) -> Hashable:
        """No rounds yet."""
        self._turns: list[Turn] = []
        return None

    def k(self, state: Any) -> int:
        """What the schedule says."""
        return int(self._schedule.k(self._turns))

    def after(self, state: Any, turn: Turn) -> Hashable:
        """One round more."""
        self._turns.append(turn)
        return None


class Follows:
    """A schedule of the loop: `k(history)`, a function of the rounds so far.

    A schedule that offers `memory(history) -> Hashable`, what of the past decides all that it will
    ever say, is replayed exactly however long the text is: histories with the same memory are one.
    Without it every history is a state of its own, and soon there are too many.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self._memory = getattr(schedule, "memory", None)

    @property
    def forgets(self) -> bool:
        """Whether different histories may be one state."""
        return self._memory is not None

    def begin(self) -> Hashable:
        """No rounds yet."""
        return self._past(())

    def k(self, state: Past) -> int:
        """What the schedule says."""
        return int(self.schedule.k(state.turns))

    def after(self, state: Past, turn: Turn) -> Hashable:
        """One round more."""
        return self._past((*state.turns, turn))

    def _past(self, turns: tuple[Turn, ...]) -> Past:
        return Past(turns, self._key(turns))

    def _key(self, turns: Sequence[Turn]) -> Hashable:
        if self._memory is not None:
            key: Hashable = self._memory(turns)
            return key
        return tuple((turn.drafted, turn.accepted) for turn in turns)


STATES = 20_000  # of positions and schedule, beyond which coins are thrown instead
NEGLIGIBLE = 1e-13  # a chance so small changes no digit that is shown
SHORT = 10  # tokens of a text whose histories are few enough to be told apart
THROWS = 200  # generations that are thrown then


class Span(NamedTuple):
    """Where the rounds of a text may go; positions count from its first token."""

    length: int  # tokens that came out
    budget: int  # that could have: `max_new_tokens`, or what the target's context held
    reach: int | None = None  # positions before which the draft's own context ends; None = never

    def room(self, at: int) -> int:
        """Tokens that may be drafted in a round that starts at `at`: `loop.decode.room`."""
        ends = self.budget - 1 if self.reach is None else min(self.budget - 1, self.reach)
        return max(0, ends - at)


def span_of(text: Written, along: Along) -> Span:
    """Return where the rounds of a text may go, with the end of the draft's own context."""
    reach = along.reach if isinstance(along, Drawn) else None
    return Span(len(text.q), text.budget, reach)


class Start(NamedTuple):
    """Rounds from one position with so many drafted tokens, over all ways to get there."""

    position: int
    asked: int  # tokens that the drafter was asked for: K, clamped
    drafted: int
    chance: float  # that there is such a round
    tested: float  # expected, times that chance; as the rules that test one by one count it
    accepted: float


@dataclass(frozen=True)
class Law:
    """What a text takes. Expectations are over the coins, the text is given."""

    starts: tuple[Start, ...]
    rounds: Floats  # [R + 1] the chance of each number of rounds
    emitted: int
    looked: Floats  # [L] how often the slot of each position is tested, expected
    unknown: float = 0.0  # expected drafted slots of which the trace tells nothing: none was kept
    throws: int | None = None  # None: exact; else the generations that were thrown

    @property
    def mean_rounds(self) -> float:
        """Expected."""
        return float(self.rounds @ np.arange(len(self.rounds)))

    @property
    def variance(self) -> float:
        """Of the number of rounds, over the coins."""
        n = np.arange(len(self.rounds))
        return float(self.rounds @ (n - self.mean_rounds) ** 2)

    @property
    def drafted(self) -> float:
        """Expected."""
        return sum(start.chance * start.drafted for start in self.starts)

    @property
    def tested(self) -> float:
        """Expected."""
        return sum(start.tested for start in self.starts)

    @property
    def accepted(self) -> float:
        """Expected, before the cut."""
        return sum(start.accepted for start in self.starts)

    def cost(self, of: Callable[[int, int], float]) -> float:
        """Expected sum over the rounds of `of(drafted, position)`."""
        return sum(start.chance * of(start.drafted, start.position) for start in self.starts)


def replay(chances: Chances, span: Span, policy: Policy, throws: int = THROWS) -> Law:
    """The law of the rounds of one text.

    Exact for a schedule that says what it remembers (`Follows`), while positions and states are few
    (`STATES`), and for any on a short text. Else `throws` generations are thrown from coins with
    fixed seeds, and `Law.throws` says so.
    """
    if isinstance(policy, Always):
        return _constant(chances, span, policy.lookahead)
    if isinstance(policy, Follows) and not policy.forgets and span.length > SHORT:
        return thrown(chances, span, Growing(policy.schedule), throws)
    found = _exact(chances, span, policy)
    return found if found is not None else thrown(chances, span, policy, throws)


def _constant(chances: Chances, span: Span, k: int) -> Law:
    """The same for one K, in columns of all positions."""
    length = span.length
    kept = np.zeros((length, k))  # chance that i + 1 slots or more are kept
    asked = np.minimum(k, [span.room(at) for at in range(length)]).astype(np.int64)
    drafted, unknown = np.zeros(length, np.int64), np.zeros(length)
    for at in range(length):
        slots = chances.slots(at, int(asked[at])) if asked[at] else np.zeros(0)
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
        ends[-1] += outcomes[at, inside:].sum()  # beyond the text there is nothing
        ways[at + 1 : at + 1 + inside, 1:] += ends[:, None] * ways[at, :-1]
    weight = ways[:length].sum(1)
    looked, starts = np.zeros(length), []
    for at in map(int, np.flatnonzero(weight > 0)):
        n, chance = int(drafted[at]), float(weight[at])
        ahead = looked[at : at + n]
        ahead += chance * reached[at, : len(ahead)]
        sums = chance * reached[at, :n].sum(), chance * kept[at].sum()
        starts.append(Start(at, int(asked[at]), n, chance, *map(float, sums)))
    return Law(tuple(starts), ways[length], length, looked, float(weight @ unknown))


def _exact(chances: Chances, span: Span, policy: Policy) -> Law | None:
    length = span.length
    ways: list[dict[Hashable, Floats]] = [
        {} for _ in range(length)
    ]  # state -> [R] by rounds so far
    rounds = np.zeros(length + 1)
    tally = Tally(length)
    if length == 0:
        return Law((), np.ones(1), 0, np.zeros(0))
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


def thrown(chances: Chances, span: Span, policy: Policy, throws: int = THROWS) -> Law:
    """The same by throwing the coins of `throws` generations."""
    tally = Tally(span.length)
    counts = np.zeros(span.length + 1)
    for seed in range(throws):
        coins = random.Random(f"replay/{seed}")
        at, state, count = 0, policy.begin(), 0
        while at < span.length:
            turns = Turns(chances, at, min(policy.k(state), span.room(at)))
            tally.add(turns, 1 / throws)
            accepted = turns.throw(coins)
            state = policy.after(state, turns.turn(accepted, chances))
            at, count = at + accepted + 1, count + 1
        counts[count] += 1 / throws
    return replace(tally.law(counts), throws=throws)


class Turns:
    """The round from one position with a given K, and what may become of it."""

    def __init__(self, chances: Chances, at: int, k: int) -> None:
        slots = chances.slots(at, k) if k > 0 else np.zeros(0)
        self.at, self.asked, self.drafted = at, k, len(slots)
        told = np.nan_to_num(slots, nan=0.0)
        self.kept = np.cumprod(told)  # [N] chance that i + 1 or more are kept
        self.reached = np.concatenate([[1.0], self.kept])  # [N + 1]
        self.outcomes = self.reached - np.concatenate([self.kept, [0.0]])  # [N + 1]
        self.unknown = int(np.isnan(slots).sum())
        self.one_by_one = chances.one_by_one

    def turn(self, accepted: int, chances: Chances) -> Turn:
        """The round in which so many were kept."""
        tested = min(accepted + 1, self.drafted)
        shared = [chances.overlap(self.at + i) for i in range(tested)]
        overlap = sum(s for s in shared if s is not None) if None not in shared else None
        counts = self.drafted, tested if self.one_by_one else -1, accepted
        return Turn(*counts, [0] * (accepted + 1), overlap if self.one_by_one else None)

    def throw(self, coins: random.Random) -> int:
        """How many are kept this time."""
        u = coins.random()
        return int((u < self.kept).sum())


class Tally:
    """Sums over the rounds of a text."""

    def __init__(self, length: int) -> None:
        self._looked = np.zeros(length)
        self._sums: dict[tuple[int, int, int], Floats] = {}
        self._unknown = 0.0

    def add(self, turns: Turns, weight: float) -> None:
        """A round that is there with that chance."""
        if weight == 0:
            return
        key = turns.at, turns.asked, turns.drafted
        own = np.array([1.0, turns.reached[: turns.drafted].sum(), turns.kept.sum()])
        self._sums[key] = self._sums.get(key, np.zeros(3)) + weight * own
        self._unknown += weight * turns.unknown
        ahead = self._looked[turns.at : turns.at + turns.drafted]
        ahead += weight * turns.reached[: len(ahead)]

    def law(self, rounds: Floats) -> Law:
        """All of it."""
        starts = tuple(Start(*key, *map(float, sums)) for key, sums in sorted(self._sums.items()))
        return Law(starts, rounds, len(self._looked), self._looked, self._unknown)


def pooled_tau(laws: Iterable[Law]) -> float:
    """Block efficiency over texts: emitted tokens by expected rounds, each summed."""
    every = list(laws)
    return sum(law.emitted for law in every) / sum(law.mean_rounds for law in every)
