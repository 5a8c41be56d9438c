"""The cells of an unknown rule, found by queries of the verifier, or of the drafter."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Facts, RuleCells
from spsbench.audit.exact.queries import DrafterQuery, Probe, Query, VerifierQuery, edges, guesses
from spsbench.loop.types import Draft, Purpose, Verifier

EQUAL = 1e-14  # rounding tolerance of two probabilities


@dataclass
class DiscoveredRule(RuleCells):
    """Cells of any `verifier`, found by queries; cells of the draft from its distribution.

    If the draft has no distribution, the drafter is queried too. A drafter that drafts anew after
    the same text, because of a rejection, is detected at the ends of the cells.
    """

    verifier: Verifier
    drawn: Callable[[Facts, int], list[float]] | None = Facts.drawn
    _queries: dict[Any, Query] = field(default_factory=dict, repr=False)
    _drafts: dict[Any, list[float]] = field(default_factory=dict, repr=False)

    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        """Return the cells of a draft's uniform by distribution or query, of others by queries."""
        if purpose is Purpose.DRAFT:
            return self._redrawn(facts, slot) if self.drawn is None else self.drawn(facts, slot)
        before = {at: u for at, u in facts.middle.items() if at[0] is not Purpose.DRAFT}
        return self._query(facts).cells(before, (purpose, slot))

    @property
    def redrafts(self) -> bool:  # type: ignore[override]  # by case
        """Return whether this rule queries the drafter."""
        return self.drawn is None

    def _redrawn(self, facts: Facts, slot: int) -> list[float]:
        """Return a draft uniform's cell widths, found by drafting; ValueError: no `redraft`."""
        if facts.redraft is None:
            raise ValueError("a draft without a drafter to ask")
        before = {at: u for at, u in facts.middle.items() if at[0] is Purpose.DRAFT}
        place = facts.text, slot, *sorted(before.items())
        if place not in self._drafts:
            tokens = facts.redraft(Probe(before, 0)).tokens.tolist()
            texts = ((*facts.text, *tokens[:n]) for n in range(len(tokens) + 1))
            likely = {edge for text in texts for edge in edges(facts.p(text)) if 0 < edge < 1}
            query = DrafterQuery(sorted(likely), facts.redraft)
            self._drafts[place] = query.cells(before, (Purpose.DRAFT, slot))
        return self._drafts[place]

    def _query(self, facts: Facts) -> Query:
        """Return the query about the draft so far, an empty one if none; kept by draft and text."""
        draft = facts.draft or Draft(torch.empty(0, dtype=torch.int64), None)
        drafted = facts.text, draft_signature(draft)
        if drafted not in self._queries:
            q = target_probs(facts, draft)
            p = [] if draft.probs is None else draft.probs.tolist()
            above = None if draft.parents is None else draft.parents.tolist()
            likely = guesses(q.tolist(), p, draft.tokens.tolist(), above)
            self._queries[drafted] = VerifierQuery(likely, self.verifier, draft, q)
        return self._queries[drafted]


def target_probs(facts: Facts, draft: Draft) -> Tensor:
    """Return [N + 1, V] the target's distributions after the text and each node, as in the loop.

    Probabilities that equal the draft's up to rounding are the draft's, to the last bit.
    """
    tokens = draft.tokens.tolist()
    above = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, above, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    q = torch.tensor([facts.q((*facts.text, *path)) for path in ((), *paths)], dtype=torch.float64)
    if draft.probs is None or not paths:
        return q
    at = torch.tensor([parent + 1 for parent in above])
    same = (q[at] - draft.probs).abs() < EQUAL
    q[at] = draft.probs.where(same, q[at])
    return q


def draft_signature(draft: Draft) -> tuple[Any, ...]:
    """Return the tokens, parents and probs of a draft as tuples; None for those it lacks."""
    parents = None if draft.parents is None else tuple(draft.parents.tolist())
    probs = None if draft.probs is None else tuple(draft.probs.flatten().tolist())
    return tuple(draft.tokens.tolist()), parents, probs
