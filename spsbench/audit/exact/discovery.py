"""Thresholds of an unknown rule, found by queries of the verifier.

A verifier is a pure function of draft, laws and uniforms, so the points where its ruling changes
can be searched for. Each uniform moves along [0, 1) while the earlier uniforms stay in their cells
and the later ones try several values. Between two points with different rulings the change is
bisected to the last bit, or to a likely threshold. A missed change is detected later: the walk runs
every cell at both ends.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Facts, Rule
from spsbench.audit.exact.queries import (
    LATER,
    DrafterQuery,
    Fixed,
    Probe,
    Query,
    Ruling,
    Uniform,
    VerifierQuery,
    edges,
    guesses,
)
from spsbench.loop.types import Draft, Purpose, Verifier

GRID = tuple(i / 12 for i in range(12))
MAX_CHANGES = 24  # changes along one uniform; more are too many to walk
LAST = 1.0 - 2.0**-53  # the largest uniform
TINY = 2.0**-60  # bisection ends when an interval is this wide, or cannot be halved
EQUAL = 1e-14  # rounding tolerance of two probabilities
NEAR = 2e-15  # distance at which a change coincides with a likely threshold

Ask = Callable[[float], Ruling]


@dataclass
class Question:
    """A verifier or a drafter to ask, likely thresholds, and the cells known so far."""

    query: Query
    likely: list[float]
    known: dict[Any, list[float]] = field(default_factory=dict)  # the widths of the cells

    @property
    def points(self) -> list[float]:
        """Return the first points to try; few uniforms also get points near likely thresholds."""
        return self._many if self.query.at_once else sorted({*GRID, LAST})

    @cached_property
    def _many(self) -> list[float]:
        around = (u for at in self.likely for u in (at - NEAR, at + NEAR) if 0 <= u <= LAST)
        return sorted({*GRID, LAST, *around})

    def cells(self, before: Fixed, moved: Uniform) -> list[float]:
        """Return the widths of the cells of one uniform, from 0 up.

        Args:
            before: midpoints of the cells chosen for the earlier uniforms.
        """
        place = tuple(sorted(before.items())), moved
        if place not in self.known:
            edges = [0.0, *sorted(self._changes(before, moved)), 1.0]
            self.known[place] = [b - a for a, b in pairwise(edges)]
        return self.known[place]

    def _changes(self, before: Fixed, moved: Uniform) -> list[float]:
        """Return the changes of the ruling along one uniform, in all trials of later uniforms.

        Raises:
            ArithmeticError: the ruling changes in too many places.
        """
        points = self.points
        rulings = self.query.along(before, moved, points)
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
                seen[u] = self.query.one({**before, moved: u}, later)
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
                    changes += between(ask, start, end, self.likely)
        return changes


@dataclass
class DiscoveredRule(Rule):
    """Cells of any `verifier`, found by queries; cells of the draft from its law.

    If the draft has no law, the drafter is queried too. A drafter that drafts anew after the same
    text, because of a rejection, is detected at the ends of the cells.
    """

    verifier: Verifier
    drawn: Callable[[Facts, int], list[float]] | None = Facts.drawn
    _questions: dict[Any, Question] = field(default_factory=dict, repr=False)
    _drafts: dict[Any, list[float]] = field(default_factory=dict, repr=False)

    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        if purpose is Purpose.DRAFT:
            return self._redrawn(facts, slot) if self.drawn is None else self.drawn(facts, slot)
        before = {at: u for at, u in facts.middle.items() if at[0] is not Purpose.DRAFT}
        return self._question(facts).cells(before, (purpose, slot))

    @property
    def redrafts(self) -> bool:  # type: ignore[override]  # by case
        """Return whether this rule queries the drafter."""
        return self.drawn is None

    def _redrawn(self, facts: Facts, slot: int) -> list[float]:
        """Return the widths of the cells of a draft's uniform, found by drafting with others."""
        if facts.redraft is None:
            raise ValueError("a draft without a drafter to ask")
        before = {at: u for at, u in facts.middle.items() if at[0] is Purpose.DRAFT}
        place = facts.text, slot, *sorted(before.items())
        if place not in self._drafts:
            tokens = facts.redraft(Probe(before, 0)).tokens.tolist()
            texts = ((*facts.text, *tokens[:n]) for n in range(len(tokens) + 1))
            likely = {edge for text in texts for edge in edges(facts.p(text)) if 0 < edge < 1}
            question = Question(DrafterQuery(facts.redraft), sorted(likely))
            self._drafts[place] = question.cells(before, (Purpose.DRAFT, slot))
        return self._drafts[place]

    def _question(self, facts: Facts) -> Question:
        """Return the question of the draft at hand, kept for each draft and text."""
        draft = facts.draft or Draft(torch.empty(0, dtype=torch.int64), None)
        drafted = facts.text, shape(draft)
        if drafted not in self._questions:
            self._questions[drafted] = question_of(self.verifier, facts, draft)
        return self._questions[drafted]


def question_of(verifier: Verifier, facts: Facts, draft: Draft) -> Question:
    """Return the question about a draft, without any answers yet."""
    q = laws_after(facts, draft)
    p = [] if draft.probs is None else draft.probs.tolist()
    above = None if draft.parents is None else draft.parents.tolist()
    likely = sorted(set(guesses(q.tolist(), p, draft.tokens.tolist(), above)))
    return Question(VerifierQuery(verifier, draft, q), likely)


def between(ask: Ask, low: float, high: float, likely: Sequence[float]) -> list[float]:
    """Return all changes between two points with different rulings: the first point of each."""
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
        for change in between(ask, start, end, likely)
    ]


def laws_after(facts: Facts, draft: Draft) -> Tensor:
    """Return [N + 1, V] the target's laws after the text and each node, as the loop passes them."""
    tokens = draft.tokens.tolist()
    above = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, above, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    rows = [facts.q((*facts.text, *path)) for path in ((), *paths)]
    q = torch.tensor(rows, dtype=torch.float64)
    if draft.probs is None or not paths:
        return q
    # Equal laws are bitwise equal in the loop, so a tie there is a tie here.
    at = torch.tensor([parent + 1 for parent in above])
    same = (q[at] - draft.probs).abs() < EQUAL
    q[at] = draft.probs.where(same, q[at])
    return q


def shape(draft: Draft) -> tuple[Any, ...]:
    """Return the values that identify a draft."""
    parents = None if draft.parents is None else tuple(draft.parents.tolist())
    probs = None if draft.probs is None else tuple(draft.probs.flatten().tolist())
    return tuple(draft.tokens.tolist()), parents, probs
