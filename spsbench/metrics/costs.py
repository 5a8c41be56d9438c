"""The measured costs of every part of a round on one machine.

    seconds of a round = draft(k) + target(N + 1) + sampling(N + 1) + verify(N + 1) + host(N + 1)
                         + unexplained

A request for K tokens yields N: fewer where a deterministic drafter finds less, more in a tree.
v(n) = target(n) / target(1) and c = draft(k) / k / target(1) are the letters of the papers. Seconds
by tokens and context are measured in turns; figures are medians with intervals.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spsbench.errors import DataError
from spsbench.metrics.intervals import Floats
from spsbench.metrics.surfaces import MedianEstimate, Surface, in_turns, interpolate_along, typical
from spsbench.settings.method import Drafting
from spsbench.spec import Spec

PLAIN = Drafting(Spec("none"))  # ArS
STEP = 16  # tokens of context that are priced alike
LEAST = 0.5  # least part of the known costs that a round takes
FREE = "free"  # the rule of costs that no machine measured: verifying takes no time
BELIEVED = 0.02  # tolerated relative error of medians of few turns
SCALED = ("draft", "target", "sampling", "verify", "host")
"""Parts of a round: drafting, the target's pass, its warp, the rule, and the loop around them."""
PARTS = (*SCALED, "unexplained")

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class Contradiction(NamedTuple):
    """A round with a draft that was measured as faster than a plain round."""

    draft: Drafting
    k: int
    seconds: float  # the median over turns
    plain: float  # median of an ArS round

    def __str__(self) -> str:
        return (
            f"a round of {self.draft} with K = {self.k} took {1e3 * self.seconds:.2f} ms, a plain "
            f"one, which does less, {1e3 * self.plain:.2f} ms"
        )


@dataclass(frozen=True, eq=False)
class DrafterCosts:
    """Costs of a drafter in real rounds of the decoding loop, by K and context."""

    verifier: str  # rule of the rounds
    drafted: Surface  # number of drafted tokens, not seconds
    draft: Surface
    unexplained: Surface  # seconds of the rounds less their parts


@dataclass(frozen=True, eq=False)
class Rule:
    """Costs of the decoding loop with a rule over free models; `tokens` are N + 1."""

    sampling: Surface
    verify: Surface
    host: Surface


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCosts:
    """Costs of rounds that several texts make together, by the texts of a batch."""

    sizes: tuple[int, ...]  # texts of a batch, rising from 1
    passes: tuple[Surface, ...]  # by size: the target's, by tokens of each text and context
    rest: Mapping[Drafting, tuple[Surface, ...]]  # by size: a round less its pass, by K and context
    cached: int  # bytes of a token's keys and values in the target

    def __post_init__(self) -> None:
        if self.sizes[:1] != (1,) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"{list(self.sizes)}: expected texts of a batch that rise from 1")
        if any(len(surfaces) != len(self.sizes) for surfaces in (self.passes, *self.rest.values())):
            raise ValueError(f"expected costs of {len(self.sizes)} sizes of a batch")

    def target(self, size: float, n: float, context: float) -> Floats:
        """Return [turns] seconds of a common pass over `n` tokens of each of `size` texts."""
        return self._between(self.passes, n, context, size)

    def round(
        self, drafter: Drafting, k: float, drafted: float, size: float, context: float
    ) -> Floats:
        """Return [turns] seconds of a common round of `size` texts that request `k` tokens each.

        `drafter` `PLAIN` with k = 0 is ArS; DataError: one that was not measured in batches. To the
        pass of the target over `drafted` + 1 tokens of each text, a mean, comes the rest of the
        round, 0 or more. Sizes between and beyond those measured are linear.
        """
        surfaces = _entry("drafter in batches", drafter, self.rest)
        spent = self._between(surfaces, k, context, size)
        return self.target(size, drafted + 1, context) + np.maximum(spent, 0.0)

    def _between(self, by_size: Sequence[Surface], n: float, context: float, size: float) -> Floats:
        """Return [turns] seconds, linear between and beyond the two sizes measured next to it."""
        right = min(max(bisect_left(self.sizes, size), 1), len(self.sizes) - 1)
        near = slice(max(right - 1, 0), right + 1)
        seconds = np.stack([surface.at(n, context) for surface in by_size[near]], -1)
        return interpolate_along(self.sizes[near], seconds, size, -math.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """Measured seconds by part."""

    passes: Surface  # the target's pass alone, by tokens fed and context
    arms: Mapping[Drafting, DrafterCosts]  # `PLAIN` is ArS
    rules: Mapping[str, Rule]  # by verifier
    setting: Mapping[str, Any] = field(default_factory=dict)  # machine, versions, models, warp ...
    busy: bool = False  # whether other work during the measurement widens the intervals
    weights: int | None = None  # bytes that a pass of the target reads; None: unknown
    changed: Mapping[str, float] = field(default_factory=dict)  # hypothetical factors by part
    batches: BatchCosts | None = None  # common rounds of several texts; None: not measured
    _known: dict[tuple[Any, ...], Floats] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_passes(
        cls,
        passes: Mapping[int, Surface],
        drafts: Mapping[Drafting, Mapping[int, Surface]],
        setting: Mapping[str, Any],
    ) -> "Costs":
        """Return costs that are arithmetic: a round is a pass of the target, and its drafting.

        Sampling, verifying and the loop are free; ArS is added. `passes` has for each number of
        texts in a batch, rising from 1, a pass by tokens of each text and context; `drafts` has for
        each drafter and the same numbers (KeyError: one lacks) the drafting by K. `setting` is
        recorded as the conditions of the times.
        """
        nothing = line(0.0, 0.0)
        arms = {
            name: DrafterCosts(FREE, nothing, of[1], nothing)
            for name, of in {PLAIN: dict.fromkeys(passes, nothing), **drafts}.items()
        }
        rest = {name: tuple(of[size] for size in passes) for name, of in drafts.items()}
        rest[PLAIN] = (nothing,) * len(passes)
        sizes, by_size = tuple(passes), tuple(passes.values())
        batches = BatchCosts(sizes=sizes, passes=by_size, rest=rest, cached=0)
        rules = {FREE: Rule(nothing, nothing, nothing)}
        return cls(passes=passes[1], arms=arms, rules=rules, setting=setting, batches=batches)

    @classmethod
    def of_ratios(cls, row: float, drafts: Mapping[Drafting, float]) -> "Costs":
        """Return costs in plain passes of the target, for rounds of one text.

        Each row of the target's pass beyond the first costs `row`; `drafts` has each drafter's cost
        of a requested token, 0 for a look-up. All else is free.
        """
        drafting = {name: {1: line(token, token)} for name, token in drafts.items()}
        setting = {"row": row, "drafts": {str(name): cost for name, cost in drafts.items()}}
        return cls.of_passes({1: line(1.0, row)}, drafting, setting)

    def round(
        self,
        drafter: Drafting,
        k: float,
        drafted: float,
        context: float,
        *,
        batch: int = 1,
        rule: str | None = None,
    ) -> Floats:
        """Return [parts, turns] seconds of a round, in the order of `PARTS`; a cached array.

        `k` tokens are requested of `drafter`, which returns `drafted`; `PLAIN` with k = 0 is a step
        of ArS. If it returns none, the round is a plain one, and its drafting. With a draft it
        takes as long as a plain one at least, a part of its work (`contradictions`): the
        unexplained seconds are raised to that, and are never below -`LEAST` times the others.
        Contexts within `STEP` tokens are priced alike. `batch` texts make the round together in
        these seconds. `rule` is the verifier; None, or one that was not measured, costs as much as
        the drafter's. DataError: `drafter` was not measured.
        """
        key = drafter, k, drafted, int(context // STEP), batch, rule
        if key in self._known:
            return self._known[key]
        middle = (int(context // STEP) + 0.5) * STEP
        spent = self._parts(PLAIN, 0, 0, middle, batch, None)
        if drafted == 0 and k > 0:  # the drafter found nothing
            spent[0] += in_turns(self.drafter(drafter).draft.at(k, middle), spent.shape[1])
        elif drafted > 0:
            plain = np.median(spent.sum(0))
            spent = self._parts(drafter, k, drafted, middle, batch, rule)
            explained = spent[:-1].sum(0)
            # a larger negative remainder would exceed the parts it corrects
            spent[-1] = np.maximum(spent[-1], -LEAST * explained)
            spent[-1] += max(float(plain - np.median(explained + spent[-1])), 0.0)
        self._known[key] = spent
        return spent

    def _parts(
        self, drafter: Drafting, k: float, n: float, context: float, batch: int, rule: str | None
    ) -> Floats:
        """Return [parts, turns] seconds as measured, for `n` drafted tokens; DataError: unmeasured.

        A `batch` above 1 has the pass as target and all else as draft; unmeasured, it costs what
        one text does. An unknown `rule` costs as much as the drafter's own.
        """
        if batch == 1 or self.batches is None:
            costs = self.drafter(drafter)
            by_rule = self.rules.get(rule or "") or _entry("verifier", costs.verifier, self.rules)
            seconds = [
                costs.draft.at(k, context),
                self.passes.at(n + 1, context),
                *(getattr(by_rule, part).at(n + 1, context) for part in SCALED[2:]),
                costs.unexplained.held(k, context),
            ]
            return np.stack([in_turns(part, self.turns) for part in seconds])
        target = self.batches.target(batch, n + 1, context)
        nothing = np.zeros_like(target)
        rest = self.batches.round(drafter, k, n, batch, context) - target
        return np.stack([rest, target, nothing, nothing, nothing, nothing])

    @property
    def turns(self) -> int:
        """Return the number of turns."""
        return len(self.passes.seconds)

    def target(self, n: float, context: float) -> MedianEstimate:
        """Return the seconds of a target pass over `n` new tokens after `context` cached tokens."""
        return typical(self.passes.at(n, context), self.busy)

    def relative(self, drafter: Drafting, n: float, context: float) -> MedianEstimate:
        """Return c: the time of one of `n` drafted tokens, in passes of the target over one."""
        token_seconds = self.drafter(drafter).draft.at(n, context) / n
        return typical(token_seconds / self.passes.at(1, context), self.busy)

    def contradictions(self) -> list[Contradiction]:
        """Return for each drafter at most one round that was measured as faster than a plain round.

        A plain round does a part of its work. Medians over turns are compared at all measured K and
        contexts, and of a drafter's rounds the fastest, relative to a plain one, counts if it is
        more than `BELIEVED` faster. Hypothetical costs are not measured, and so have no
        contradictions.
        """
        contradictions: list[Contradiction] = []
        if self.changed:
            return contradictions
        for name, costs in self.arms.items():
            if name == PLAIN:
                continue
            rounds = []
            for k, context in product(costs.draft.tokens, costs.draft.contexts):
                drafted = float(costs.drafted.held(k, context).mean())
                took = np.median(self._parts(name, k, drafted, context, 1, None).sum(0))
                plain = np.median(self._parts(PLAIN, 0, 0, context, 1, None).sum(0))
                rounds.append(Contradiction(name, k, float(took), float(plain)))
            worst = min(rounds, key=lambda round_: round_.seconds / round_.plain)
            if worst.seconds < (1 - BELIEVED) * worst.plain:
                contradictions.append(worst)
        return contradictions

    def scaled(self, **factors: float) -> "Costs":
        """Return hypothetical costs, each part times its factor: `scaled(draft=0.5, target=2)`.

        Parts are those of `SCALED`; unexplained time and batches stay. `changed` has the products
        of all factors so far. DataError: another part, or a factor that is 0 or less, or not
        finite.
        """
        for part, factor in factors.items():
            if part not in SCALED or not 0 < factor < math.inf:
                raise DataError(
                    f"{part} times {factor}: expected one of {', '.join(SCALED)} and a number "
                    "above 0. Change the factor"
                )
        changed = {
            part: self.changed.get(part, 1.0) * factors.get(part, 1.0)
            for part in SCALED
            if part in self.changed or factors.get(part, 1.0) != 1
        }
        draft, target, sampling, verify, host = (factors.get(part, 1.0) for part in SCALED)
        arms = {n: replace(c, draft=c.draft.times(draft)) for n, c in self.arms.items()}
        rules = {
            n: Rule(r.sampling.times(sampling), r.verify.times(verify), r.host.times(host))
            for n, r in self.rules.items()
        }
        passes = self.passes.times(target)
        return replace(self, passes=passes, arms=arms, rules=rules, changed=changed)

    def drafter(self, drafter: Drafting) -> DrafterCosts:
        """Return the costs of a drafter; DataError: it was not measured."""
        return _entry("drafter", drafter, self.arms)


def line(of_one: float, further: float) -> Surface:
    """Return a surface of one turn: the seconds of one token, and of each further one."""
    return Surface((1, 2), (0,), np.array([of_one, of_one + further]).reshape(1, 2, 1))


def _entry(kind: str, key: Key, measured: Mapping[Key, Entry]) -> Entry:
    if key not in measured:
        raise DataError(
            f"no costs of {kind} {str(key)!r} (the table of costs): expected one of "
            f"{', '.join(map(str, measured))}. Measure them with it"
        )
    return measured[key]
