"""What every part of a round costs on one machine, as it was measured there.

    seconds of a round = draft(k) + target(N + 1) + sampling(N + 1) + verify(N + 1) + host(N + 1)
                         + what is not explained

N of the K tokens that were asked for are drafted: fewer where a drafter by rule finds less, more in
a tree. v(n) = target(n) / target(1) and c = draft(k) / k / target(1) are the letters of the papers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spsbench.errors import DataError
from spsbench.metrics.intervals import Floats

# Seconds by tokens and context, measured in turns; medians of them with intervals.

MISSED = 0.025  # chance beyond each end of an interval
SLOWEST = 0.1  # part of the turns that counts as disturbed on a busy machine
FEWEST_TURNS = 6  # least and greatest of 6 hold the median with 97 %, of 5 with 94 %


class Typical(NamedTuple):
    """A median over turns with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def typical(values: Floats, busy: bool = False) -> Typical:
    """The median of [T] turns, and the order statistics that hold the true one 95 times in 100.

    Nothing is assumed of how times are distributed (Hahn and Meeker 1991, section 5.2). On a busy
    machine turns do not vary by chance alone: then the interval is from the least that was seen to
    all but the slowest tenth.
    """
    ordered = np.sort(values)
    rank = _rank(len(ordered))
    low, high = ordered[rank], ordered[-1 - rank]
    if busy:
        low, high = ordered[0], max(high, np.quantile(ordered, 1 - SLOWEST))
    return Typical(float(np.median(ordered)), float(low), float(high))


def _rank(count: int) -> int:
    """How many of the least, and of the greatest, lie outside the interval of `count` turns."""
    below = 0.0
    for rank in range(count):
        below += math.comb(count, rank) / 2**count
        if below > MISSED:
            return max(rank - 1, 0)
    return 0


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one part in every turn, at a grid of tokens and contexts.

    Between its points it is interpolated in both directions. Beyond the last it goes on as between
    the last two, and never falls; a shorter context than the first costs what the first does, and
    fewer tokens than the first what the line through the first two says, but no less than 0.
    """

    tokens: tuple[int, ...]  # [N], rising
    contexts: tuple[int, ...]  # [C], rising: tokens in the cache before the pass
    seconds: Floats  # [T, N, C]

    def __post_init__(self) -> None:
        shape = self.seconds.shape
        if shape[1:] != (len(self.tokens), len(self.contexts)) or not shape[0]:
            raise ValueError(
                f"seconds have the shape {shape}: expected turns, then "
                f"{len(self.tokens)} by {len(self.contexts)}"
            )
        for axis in (self.tokens, self.contexts):
            if not axis or list(axis) != sorted(set(axis)):
                raise ValueError(f"{list(axis)}: expected numbers that rise")

    def at(self, tokens: float, context: float) -> Floats:
        """[T] seconds of each turn."""
        rows = along(self.contexts, self.seconds, context, 0.0)  # [T, N]
        return along(self.tokens, rows, tokens, -math.inf)

    def held(self, tokens: float, context: float) -> Floats:
        """The same, but with nothing beyond the ends: the nearest point there."""
        first, last = self.tokens[0], self.tokens[-1]
        near = min(max(context, self.contexts[0]), self.contexts[-1])
        return self.at(min(max(tokens, first), last), near)

    def times(self, factor: float) -> "Surface":
        """Another part that takes `factor` times as long."""
        return Surface(self.tokens, self.contexts, self.seconds * factor)

    def of_turns(self, turns: Sequence[int]) -> "Surface":
        """Of some of the turns only."""
        return Surface(self.tokens, self.contexts, self.seconds[list(turns)])


def along(axis: Sequence[int], values: Floats, at: float, least: float) -> Floats:
    """[..., A] values at the points of `axis` -> [...] at one place of it.

    `least`: 0 holds the first value before the first point, minus infinity goes on with its line.
    """
    if len(axis) == 1:
        return np.asarray(values[..., 0])
    right = min(max(int(np.searchsorted(axis, at)), 1), len(axis) - 1)
    before, after = values[..., right - 1], values[..., right]
    share = (at - axis[right - 1]) / (axis[right] - axis[right - 1])
    if share < 0:
        share = max(share, least)
    found = before + share * (after - before)
    if share > 1:
        found = np.maximum(found, after)
    elif share < 0:
        found = np.clip(found, 0.0, before)
    return np.asarray(found)


PLAIN = "none"  # the arm that drafts nothing: ArS
BELIEVED = 0.02  # share by which medians of few turns may be off without a remark
SCALED = ("draft", "target", "sampling", "verify", "host")

Found = TypeVar("Found")


class RoundCost(NamedTuple):
    """Where the time of a round goes; each part is the median over turns, so is their sum."""

    draft: Typical
    target: Typical
    sampling: Typical  # laws of the target's logits: temperature, top-k, top-p
    verify: Typical  # the acceptance rule
    host: Typical  # the loop itself: noise, the read of the verdict, the cut
    unexplained: Typical  # what real rounds took beyond all of these; below 0 where they took less
    total: Typical


class Contradiction(NamedTuple):
    """A round with a draft that was measured as faster than one without."""

    draft: str
    k: int
    seconds: float  # the median over turns
    plain: float  # that of a round of ArS

    def __str__(self) -> str:
        return (
            f"a round of {self.draft} with K = {self.k} took {1e3 * self.seconds:.2f} ms, a plain "
            f"one, which does less, {1e3 * self.plain:.2f} ms"
        )


@dataclass(frozen=True, eq=False)
class Arm:
    """A drafter in real rounds of the loop, asked for K tokens at some contexts."""

    verifier: str  # the rule of those rounds
    drafted: Surface  # tokens that came, no seconds
    draft: Surface
    target: Surface  # its pass inside those rounds
    unexplained: Surface  # what the rounds took beyond their parts


@dataclass(frozen=True, eq=False)
class Rule:
    """The loop with a rule over models that cost nothing; `tokens` are N + 1."""

    sampling: Surface
    verify: Surface
    host: Surface


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """Measured seconds by part.

    Attributes:
        passes: of the target alone, by tokens fed and context.
        arms: what drafts, by name (`none` is ArS).
        rules: by verifier.
        setting: what the times depend on: machine, versions, threads, models, dtype, engine, warp.
        others: share of the processors that other work had meanwhile; None = not known.
        busy: whether that was so much that the intervals were widened for it.
        bandwidth: bytes a second that memory was seen to deliver; None = not known.
        weights: bytes that a pass of the target reads; None = not known.
        changed: factors of what is asked as if, by part.
    """

    passes: Surface
    arms: Mapping[str, Arm]
    rules: Mapping[str, Rule]
    setting: Mapping[str, Any] = field(default_factory=dict)
    others: float | None = None
    busy: bool = False
    bandwidth: float | None = None
    weights: int | None = None
    changed: Mapping[str, float] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How often each part was measured."""
        return len(self.passes.seconds)

    def target(self, n: float, context: float) -> Typical:
        """Seconds of a pass of the target over `n` new tokens after `context` cached ones."""
        return self._typical(self.passes.at(n, context))

    def v(self, n: float, context: float) -> Typical:
        """A pass over `n` tokens, in passes over one."""
        return self._typical(self.passes.at(n, context) / self.passes.at(1, context))

    def limit(self) -> float | None:
        """The least seconds of a pass: all weights read once."""
        return None if not self.weights or not self.bandwidth else self.weights / self.bandwidth

    def draft(self, name: str, n: float, context: float) -> Typical:
        """Seconds that a drafter takes when it is asked for `n` tokens."""
        return self._typical(self.arm(name).draft.at(n, context))

    def relative(self, name: str, n: float, context: float) -> Typical:
        """c: what a drafter takes for one of `n` tokens, in passes of the target over one."""
        each = self.arm(name).draft.at(n, context) / n
        return self._typical(each / self.passes.at(1, context))

    def drafted(self, name: str, k: float, context: float) -> float:
        """Tokens that came on average when `k` were asked for, in the rounds that were measured."""
        return float(self.arm(name).drafted.held(k, context).mean())

    def unexplained(self, name: str, k: float, context: float) -> Typical:
        """Seconds a real round took beyond the sum of its parts, which were measured apart."""
        return self._typical(self.arm(name).unexplained.held(k, context))

    def inside(self, name: str, k: float, context: float) -> Typical:
        """Seconds by which the target's pass took longer in those rounds than alone."""
        arm = self.arm(name)
        alone = self.passes.at(self.drafted(name, k, context) + 1, context)
        return self._typical(arm.target.held(k, context) - alone)

    def contradictions(self) -> list[Contradiction]:
        """Rounds that were measured as faster than a plain one, which does a part of their work.

        The one that is faster by the greatest share, of each drafter that has such rounds. Costs
        that are asked as if they were others were not measured, and cannot contradict each other.
        """
        found: list[Contradiction] = []
        if self.changed:
            return found
        for name, arm in self.arms.items():
            if name == PLAIN:
                continue
            own = []
            for k, context in product(arm.draft.tokens, arm.draft.contexts):
                drafted = self.drafted(name, k, context)
                took = np.sum(self.turns_of(name, k, context, drafted=drafted), 0)
                plain = np.sum(self.turns_of(PLAIN, 0, context), 0)
                own.append(Contradiction(name, k, float(np.median(took)), float(np.median(plain))))
            worst = min(own, key=lambda each: each.seconds / each.plain)
            if worst.seconds < (1 - BELIEVED) * worst.plain:
                found.append(worst)
        return found

    def compared(self, name: str, other: str, n: float, context: float) -> Typical:
        """What one drafter takes for `n` tokens, in what another takes for them."""
        ours, theirs = (self.arm(each).draft.at(n, context) for each in (name, other))
        return self._typical(ours / theirs)

    def round_seconds(
        self,
        name: str,
        k: float,
        context: float,
        *,
        drafted: float | None = None,
        verifier: str | None = None,
    ) -> RoundCost:
        """A round that asks for `k` tokens.

        Args:
            name: of an arm; `none` with k = 0 is a step of ArS.
            drafted: tokens that come of it; default: `k`.
            verifier: another rule than that of the arm's own rounds.
        """
        parts = self.turns_of(name, k, context, drafted=drafted, verifier=verifier)
        return RoundCost(*map(self._typical, (*parts, np.sum(parts, 0))))

    def speed_up(self, name: str, k: float, tau: float, context: float, **round_of: Any) -> Typical:
        """Of rounds that emit `tau` tokens over ArS; made in each turn, so that drift cancels."""
        plain = np.sum(self.turns_of(PLAIN, 0, context), 0)
        return self._typical(tau * plain / np.sum(self.turns_of(name, k, context, **round_of), 0))

    def turns_of(
        self,
        name: str,
        k: float,
        context: float,
        *,
        drafted: float | None = None,
        verifier: str | None = None,
    ) -> list[Floats]:
        """[T] seconds in each turn of the parts of a round, in the order of `RoundCost`."""
        arm = self.arm(name)
        rule = self.rule(verifier or arm.verifier)
        n = (k if drafted is None else drafted) + 1
        return [
            arm.draft.at(k, context),
            self.passes.at(n, context),
            *(part.at(n, context) for part in (rule.sampling, rule.verify, rule.host)),
            arm.unexplained.held(k, context),
        ]

    def scaled(self, **factors: float) -> "Costs":
        """The same with other costs: `scaled(draft=0.5)`, `target`, `sampling`, `verify`, `host`.

        What is not explained stays as it was measured.

        Raises:
            DataError: no such part, or a factor that is not above 0.
        """
        for part, factor in factors.items():
            if part not in SCALED or not 0 < factor < math.inf:
                raise DataError(
                    f"{part} times {factor}: expected one of {', '.join(SCALED)} and a number "
                    "above 0. Change the factor"
                )
        of = {part: factors.get(part, 1.0) for part in SCALED}
        arms = {
            name: replace(arm, draft=arm.draft.times(of["draft"]))
            for name, arm in self.arms.items()
        }
        rules = {
            name: Rule(
                rule.sampling.times(of["sampling"]),
                rule.verify.times(of["verify"]),
                rule.host.times(of["host"]),
            )
            for name, rule in self.rules.items()
        }
        changed = {
            part: self.changed.get(part, 1.0) * factor
            for part, factor in of.items()
            if part in self.changed or factor != 1
        }
        passes = self.passes.times(of["target"])
        return replace(self, passes=passes, arms=arms, rules=rules, changed=changed)

    def arm(self, name: str) -> Arm:
        """The costs of a drafter.

        Raises:
            DataError: it was not measured.
        """
        return _found("drafter", name, self.arms)

    def rule(self, name: str) -> Rule:
        """The costs of a verifier.

        Raises:
            DataError: it was not measured.
        """
        return _found("verifier", name, self.rules)

    def _typical(self, values: Floats) -> Typical:
        return typical(values, self.busy)


def _found(kind: str, name: str, known: Mapping[str, Found]) -> Found:
    if name not in known:
        raise DataError(
            f"no costs of {kind} {name!r} (the table of costs): expected one of "
            f"{', '.join(known)}. Measure them with it"
        )
    return known[name]


def ms(time: Typical, interval: bool = False) -> str:
    """Seconds in milliseconds: `5.21`, or `5.21 (5.02 to 5.40)`."""
    value, low, high = (digits(1e3 * each) for each in time)
    return f"{value} ({low} to {high})" if interval else value


def digits(value: float) -> str:
    """Three digits of a number, no more than two of them decimals: `123`, `12.3`, `0.12`."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
