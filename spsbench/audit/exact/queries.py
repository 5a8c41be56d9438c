"""Thresholds of an unknown rule, found by queries of the verifier.

A verifier is a pure function of draft, distributions and uniforms, so the points where its ruling
changes can be searched for. Each uniform moves along [0, 1) while the earlier uniforms stay in
their cells and the later ones try several values. Between two points with different rulings the
change is bisected to the last bit, or to a likely threshold. A missed change is detected later: the
walk runs every cell at both ends, with the verifier unchanged.

A verifier that never reads a value on the host answers hundreds of settings in one call, by
`torch.func.vmap`; others are queried one by one.
"""

import warnings
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Noise, Purpose, Verdict, Verifier

Uniform = tuple[Purpose, int]  # a uniform of a round, by its purpose and slot
Fixed = Mapping[Uniform, float]  # uniforms whose values are given
Ruling = tuple[int, ...]  # the padded path of accepted nodes, then the final token

LATER = 7  # trial values of the uniforms that are not fixed
GRID = tuple(i / 12 for i in range(12))
MAX_CHANGES = 24  # changes along one uniform; more are too many to walk
LAST = 1.0 - 2.0**-53  # the largest uniform
TINY = 2.0**-60  # bisection ends when an interval is this wide, or cannot be halved
NEAR = 2e-15  # distance at which a change coincides with a likely threshold

Ask = Callable[[float], Ruling]


@dataclass
class Query(ABC):
    """A verifier or a drafter as a function of uniforms, and the cells found so far."""

    likely: list[float]  # likely thresholds, in order
    _cells: dict[Any, list[float]] = field(init=False, default_factory=dict, repr=False)
    at_once: bool = field(init=False, default=False)  # many settings in a call? until vmap fails

    @abstractmethod
    def one(self, fixed: Fixed, later: int) -> Ruling:
        """Return the ruling with some uniforms fixed and the others from trial `later`."""

    def together(self, fixed: Fixed, moved: Uniform, points: Sequence[float]) -> Tensor:
        """Return [LATER, points, width] as `along` does, in one call."""
        raise NotImplementedError

    def along(self, fixed: Fixed, moved: Uniform, points: Sequence[float]) -> Tensor:
        """Return [LATER, points, width] the rulings while `moved` goes along `points`, by trial.

        A ruling is `width` numbers. With `at_once` all come from one call; else each is from `one`.
        """
        if self.at_once:
            try:
                with warnings.catch_warnings(action="ignore"):  # vmap warns of slow operations
                    return self.together(fixed, moved, points)
            except Exception:  # vmap raises errors of any kind for code that it cannot batch
                self.at_once = False
        rulings = [[self.one({**fixed, moved: u}, later) for u in points] for later in range(LATER)]
        return torch.tensor(rulings)

    @property
    def points(self) -> list[float]:
        """Return the first points to try, rising; if calls answer many, both sides of `likely`."""
        return self._many if self.at_once else sorted({*GRID, LAST})

    @cached_property
    def _many(self) -> list[float]:
        around = (u for at in self.likely for u in (at - NEAR, at + NEAR) if 0 <= u <= LAST)
        return sorted({*GRID, LAST, *around})

    def cells(self, before: Fixed, moved: Uniform) -> list[float]:
        """Return the widths of the cells of uniform `moved`, from 0 up; kept for later calls.

        `before` has the midpoints of cells chosen earlier. ArithmeticError: above `MAX_CHANGES`.
        """
        place = tuple(sorted(before.items())), moved
        if place not in self._cells:
            edges = [0.0, *sorted(self._changes(before, moved)), 1.0]
            self._cells[place] = [b - a for a, b in pairwise(edges)]
        return self._cells[place]

    def _changes(self, before: Fixed, moved: Uniform) -> list[float]:
        """Return where the ruling changes along a uniform, trial by trial, unsorted, none twice.

        A change is the first point of a new ruling. ArithmeticError: more than `MAX_CHANGES`.
        """
        points = self.points
        rulings = self.along(before, moved, points)
        unlike = (rulings[:, 1:] != rulings[:, :-1]).any(-1).any(-1).tolist()  # [LATER]
        changes: list[float] = []
        for later in range(LATER):
            if unlike[later]:
                seen = dict(zip(points, map(tuple, rulings[later].tolist()), strict=True))
                changes += self._further(before, moved, later, seen, changes)
            if len(changes) > MAX_CHANGES:
                raise ArithmeticError(f"more than {MAX_CHANGES} changes along one uniform")
        return changes

    def _further(
        self,
        before: Fixed,
        moved: Uniform,
        later: int,
        seen: dict[float, Ruling],
        known: Sequence[float],
    ) -> list[float]:
        """Return the changes between the points `seen` in one trial, without the `known` ones."""

        def ask(u: float) -> Ruling:
            if u not in seen:
                seen[u] = self.one({**before, moved: u}, later)
            return seen[u]

        changes: list[float] = []
        for low, high in pairwise(list(seen)):
            if seen[low] == seen[high]:
                continue
            inside = sorted(at for at in known if low < at <= high)
            marks = [u for at in inside for u in (max(at - NEAR, low), min(at + NEAR, high))]
            edges = [low, *marks, high]
            for start, end in zip(edges[::2], edges[1::2], strict=True):  # between known ones
                if ask(start) != ask(end):
                    changes += find_changes(ask, start, end, self.likely)
        return changes


def find_changes(ask: Ask, low: float, high: float, likely: Sequence[float]) -> list[float]:
    """Return all changes between two points with different rulings: the first point of each.

    They rise. `ask` maps a point to its ruling; bisection goes by way of the `likely` thresholds,
    which rise too, and of which one that is near stands for a change.
    """
    inside = likely[bisect_right(likely, low) : bisect_left(likely, high)]
    if inside and high - low <= 3 * NEAR:
        return [inside[0]]
    middle = (low + high) / 2
    if inside:
        at = inside[len(inside) // 2]
        middle = at - NEAR if low < at - NEAR else at + NEAR
    if not inside or not low < middle < high:
        middle = (low + high) / 2
    if high - low <= TINY or middle in (low, high):
        return [high]
    return [
        change
        for start, end in ((low, middle), (middle, high))
        if ask(start) != ask(end)
        for change in find_changes(ask, start, end, likely)
    ]


@dataclass
class VerifierQuery(Query):
    """A verifier with one draft and the target's distributions `q` [N + 1, V] of it."""

    verifier: Verifier
    draft: Draft
    q: Tensor
    at_once: bool = field(init=False, default=True)

    def one(self, fixed: Fixed, later: int) -> Ruling:
        path, token, _ = self.verifier(self.draft, self.q, Probe(fixed, later))
        return (*path.tolist(), int(token))

    def together(self, fixed: Fixed, moved: Uniform, points: Sequence[float]) -> Tensor:
        """Return [LATER, points, width] as `along` does, by one call of the verifier in `vmap`."""
        trial = trials(len(self.draft.tokens) + 2)[:, None]
        uniforms = trial.repeat(1, len(points), 1, 1)  # [LATER, points, purposes, width]
        for (purpose, slot), u in fixed.items():
            uniforms[:, :, purpose, slot] = u
        uniforms[:, :, moved[0], moved[1]] = torch.tensor(points, dtype=torch.float64)

        def ruled(u: Tensor) -> tuple[Tensor, Tensor]:
            verdict: Verdict = self.verifier(self.draft, self.q, Given(u))
            return verdict.path, verdict.token

        paths, tokens = torch.func.vmap(ruled)(uniforms.flatten(0, 1))
        return torch.cat([paths, tokens[:, None]], 1).view(*uniforms.shape[:2], -1)


@dataclass
class DrafterQuery(Query):
    """A drafter after one text: rulings are draft numbers."""

    redraft: Callable[[Noise], Draft]
    _numbers: dict[tuple[Any, ...], int] = field(init=False, default_factory=dict)

    def one(self, fixed: Fixed, later: int) -> Ruling:
        draft = self.redraft(Probe(fixed, later))
        parents = None if draft.parents is None else tuple(draft.parents.tolist())
        drafted = tuple(draft.tokens.tolist()), parents
        return (self._numbers.setdefault(drafted, len(self._numbers)),)


@dataclass(frozen=True, slots=True)
class Probe(Noise):
    """Noise with some uniforms fixed; the others have the values of trial `later`."""

    fixed: Fixed
    later: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        values = [self.fixed.get((purpose, i), other(self.later, purpose, i)) for i in range(n)]
        return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Given(Noise):
    """Noise whose uniforms are `values` [purposes, width]."""

    values: Tensor

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        if n > self.values.shape[-1]:
            raise ValueError(f"{n} uniforms: {self.values.shape[-1]} are there")
        return self.values[purpose, :n]


def other(later: int, purpose: Purpose, slot: int) -> float:
    """Return the value of a uniform that is not fixed, in one of `LATER` trials."""
    if later < 2:
        return (1e-9, 1.0 - 1e-9)[later]
    return (0.5 + 0.381966 * later * (1 + int(purpose) + 3 * slot)) % 1.0


@cache
def trials(width: int) -> Tensor:
    """Return [LATER, purposes, width] the values of all uniforms in each trial."""
    return torch.tensor(
        [[[other(later, p, i) for i in range(width)] for p in Purpose] for later in range(LATER)],
        dtype=torch.float64,
    )


Probs = Sequence[float]

STEPS = 6  # bisection steps of `methods.verifiers.spectr` towards rho


def guesses(
    q: Sequence[Probs],
    p: Sequence[Probs],
    tokens: Sequence[int],
    parents: Sequence[int] | None = None,
) -> list[float]:
    """Return likely thresholds inside (0, 1), rising, for a draft of N `tokens`.

    They are points to query first, which the search verifies. `q` [N + 1] and `p` [N] are the
    distributions of target and draft as a verifier gets them, `p` empty for tokens drafted by rule;
    `parents` [N] are of a tree's nodes, None for a chain.
    """
    thresholds = {edge for probs in q for edge in edges(probs)}
    weight = 1.0
    if parents is not None or not p:  # a chain without a distribution is walked like a tree
        above = range(-1, len(tokens) - 1) if parents is None else parents
        thresholds.update(of_trees(q, p, tokens, above))
        if p:
            thresholds.update(of_tries(q, p, tokens, above))
    else:
        for slot, token in enumerate(tokens):
            thresholds.update(
                edge for w in {1.0, weight} for edge in edges(positive_excess(w, q[slot], p[slot]))
            )
            quotient = q[slot][token] / p[slot][token] if p[slot][token] > 0 else 0.0
            weight = min(1.0, weight * quotient)
            thresholds |= {quotient, weight}
            if slot + 1 < len(p):
                excess = sum(positive_excess(weight, q[slot + 1], p[slot + 1]))
                thresholds.add(excess / (excess + 1 - weight) if excess + 1 > weight else 1.0)
    return sorted(point for point in thresholds if 0 < point < 1)


def of_trees(
    q: Sequence[Probs], p: Sequence[Probs], tokens: Sequence[int], parents: Sequence[int]
) -> Iterator[float]:
    """Yield thresholds of all nodes of a tree, for arguments of `guesses`; parent -1 is the root.

    By node: each child's chance of acceptance, then the weight and the cell edges of what is left
    of q. Four times: for independent and distinct siblings, a node's first weight 1 or its chance.
    """
    for distinct in False, True:
        for whole in False, True:
            chance = {-1: 1.0}
            for node in range(-1, len(tokens)):
                children = [i for i, parent in enumerate(parents) if parent == node]
                weight = 1.0 if whole else chance[node]
                left = [weight * x for x in q[node + 1]]
                for rank, child in enumerate(children):
                    row = [float(x == tokens[child]) for x in range(len(left))]
                    if p:
                        gone = [tokens[i] for i in children[:rank]] if distinct else []
                        row = [0.0 if x in gone else w for x, w in enumerate(p[child])]
                    total, token = sum(row), tokens[child]
                    row = [x / total if total > 0 else 0.0 for x in row]
                    chance[child] = min(1.0, left[token] / row[token]) if row[token] > 0 else 0.0
                    leftover = positive_excess(1.0, left, row)
                    room = sum(leftover) + (1 - weight)
                    left = [x / room for x in leftover] if room > 0 else left
                    weight = sum(leftover) / room if room > 0 else 1.0
                    yield chance[child]
                yield weight
                yield from edges(left)


def of_tries(
    q: Sequence[Probs], p: Sequence[Probs], tokens: Sequence[int], parents: Sequence[int]
) -> Iterator[float]:
    """Yield thresholds of k independent siblings, each tested with min(1, q / (rho p)), in order.

    By text: q / (rho p) of each token, perhaps above 1, then cell edges of the residual. Rho is the
    one at which `methods.verifiers.spectr` ends. Nodes after equal texts are siblings.
    """
    texts: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        texts.append((*texts[parent + 1], token))
    for text in dict.fromkeys(texts):
        below = [node for node, parent in enumerate(parents) if texts[parent + 1] == text]
        if not below:
            continue
        target, row, rho, worth = q[texts.index(text)], p[below[0]], float(len(below)), 0.0
        for _ in range(STEPS + 1):
            kept = [min(a, b / rho) for a, b in zip(row, target, strict=True)]
            beta = min(sum(kept), 1.0)
            worth = (1 - (1 - beta) ** len(below)) / beta if beta > 0 else float(len(below))
            last, rho = rho, worth
        yield from (target[x] / (last * row[x]) for x in {tokens[i] for i in below} if row[x] > 0)
        yield from edges(positive_excess(1.0, target, [worth * x for x in kept]))


def positive_excess(weight: float, q: Probs, p: Probs) -> list[float]:
    """Return (weight q - p)+."""
    return [max(weight * a - b, 0.0) for a, b in zip(q, p, strict=True)]


def edges(weights: Probs) -> Iterator[float]:
    """Return the upper ends of an inverse CDF's cells, rising to 1; none if all weights are 0."""
    total = sum(weights)
    return (edge / total for edge in accumulate(weights) if total > 0)
