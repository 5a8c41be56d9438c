"""The cells of a rule that nobody wrote down: found by asking the verifier itself.

A verifier is a pure function of draft, laws and uniforms, so where its ruling changes can be
searched for: each uniform is moved along [0, 1) while those before it stay in their cells and those
after it try several values; between two points with different rulings the change is bisected down
to the last bit. What the search may miss is not lost: the walk runs every cell at both ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.law.thresholds import Facts, Rule
from spsbench.loop.types import Draft, Purpose, Verifier

GRID = tuple(i / 12 for i in range(12))
MOST = 24  # changes along one uniform: more cannot be walked
LAST = 1.0 - 2.0**-53  # the largest uniform there is
TINY = 2.0**-60  # bisection ends when an interval is this wide, or cannot be halved

Ruling = tuple[tuple[int, ...], int]
"""Accepted nodes and the final token."""

Ask = Callable[[float], Ruling]


@dataclass
class DiscoveredRule(Rule):
    """Cells of `verifier`, whatever it does; those of a draft as the draft's law says."""

    verifier: Verifier
    drawn: Callable[[Facts, int], list[float]] = Facts.drawn
    _known: dict[Any, list[float]] = field(default_factory=dict, repr=False)

    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        """The widths of the cells of one uniform, from 0 up."""
        if purpose is Purpose.DRAFT:
            return self.drawn(facts, slot)
        draft = facts.draft or Draft(torch.empty(0, dtype=torch.int64), None)
        before = {at: u for at, u in facts.middle.items() if at[0] is not Purpose.DRAFT}
        key = facts.text, shape(draft), tuple(sorted(before.items())), purpose, slot
        if key not in self._known:
            q = laws_after(facts, draft)

            def along(later: int) -> Ask:
                return lambda u: self._ruling(draft, q, {**before, (purpose, slot): u}, later)

            changes: list[float] = []
            for later in range(LATER):
                changes += changes_of(along(later), changes)
                if len(changes) > MOST:
                    raise ArithmeticError(f"more than {MOST} changes along one uniform")
            edges = [0.0, *sorted(changes), 1.0]
            self._known[key] = [b - a for a, b in pairwise(edges)]
        return self._known[key]

    def _ruling(
        self, draft: Draft, q: Tensor, fixed: dict[tuple[Purpose, int], float], later: int
    ) -> Ruling:
        path, token, _ = self.verifier(draft, q, Probe(fixed, later))
        return tuple(int(node) for node in path.tolist() if node >= 0), int(token)


LATER = 7  # values that the uniforms after the one in question try


@dataclass(frozen=True)
class Probe:
    """Noise with some uniforms fixed; the others have the values of trial `later`."""

    fixed: dict[tuple[Purpose, int], float]
    later: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """[n] the fixed values; low, high, or scattered ones elsewhere."""
        values = [self.fixed.get((purpose, i), self._other(purpose, i)) for i in range(n)]
        return torch.tensor(values, dtype=torch.float64)

    def _other(self, purpose: Purpose, slot: int) -> float:
        if self.later < 2:
            return (1e-9, 1.0 - 1e-9)[self.later]
        return (0.5 + 0.381966 * self.later * (1 + int(purpose) + 3 * slot)) % 1.0


def changes_of(ask: Ask, known: list[float]) -> list[float]:
    """Where the ruling changes along one uniform, apart from the changes `known` already."""
    points = sorted({*GRID, LAST, *(u for at in known for u in (max(at - 1e-14, 0.0), at))})
    points = [u for u in points if u <= LAST]
    rulings = [ask(u) for u in points]
    found: list[float] = []
    for (low, high), (below, above) in zip(pairwise(points), pairwise(rulings), strict=True):
        if below != above and not any(low < at <= high for at in known):
            found += between(ask, low, high, below, above)
    return found


def between(ask: Ask, low: float, high: float, below: Ruling, above: Ruling) -> list[float]:
    """All changes between two points with different rulings: the first points of what is new."""
    middle = (low + high) / 2
    if high - low <= TINY or middle in (low, high):
        return [high]
    ruling = ask(middle)
    left = between(ask, low, middle, below, ruling) if ruling != below else []
    right = between(ask, middle, high, ruling, above) if ruling != above else []
    return left + right


def laws_after(facts: Facts, draft: Draft) -> Tensor:
    """[N + 1, V] the target's laws after the text and after each node, as the loop hands them."""
    tokens = draft.tokens.tolist()
    above = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, above, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    rows = [facts.q((*facts.text, *path)) for path in ((), *paths)]
    return torch.tensor(rows, dtype=torch.float64)


def shape(draft: Draft) -> tuple[Any, ...]:
    """What tells two drafts apart."""
    parents = None if draft.parents is None else tuple(draft.parents.tolist())
    probs = None if draft.probs is None else tuple(draft.probs.flatten().tolist())
    return tuple(draft.tokens.tolist()), parents, probs
