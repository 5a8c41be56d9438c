"""The cells of known rules, written down: an oracle for the thresholds that the audit finds.

A new rule may come without: the search then finds its cells, in more time. Those written here are
plain Python, apart from the verifiers and from the search.
"""

from math import inf
from typing import Any

from spsbench.audit.exact.cases import Case, Facts, RuleCells
from spsbench.audit.exact.discovery import DiscoveredRule
from spsbench.audit.exact.tables import ToyPair
from spsbench.loop.types import Purpose, Verifier


class WrittenRule(RuleCells):
    """A decision without consequences has one cell."""

    def cells(self, facts: Facts, purpose: Purpose, slot: int) -> list[float]:
        if purpose is Purpose.DRAFT:
            return facts.drawn(slot)
        if purpose is Purpose.ACCEPT:
            return self.accept(facts, slot)
        return self.final(facts) if purpose is Purpose.FINAL else self.plain(facts, slot)

    def accept(self, facts: Facts, slot: int) -> list[float]:
        return [1.0]

    def final(self, facts: Facts) -> list[float]:
        return [1.0]

    def plain(self, facts: Facts, slot: int) -> list[float]:
        return [1.0]


class SpsRule(WrittenRule):
    """Cells of SpS: cell 0 of ACCEPT keeps the token; FINAL follows the residual."""

    def accept(self, facts: Facts, slot: int) -> list[float]:
        if any(facts.picked[Purpose.ACCEPT, i] == 1 for i in range(slot)):
            return [1.0]
        kept = min(1.0, quotient(facts, slot))
        return [kept, 1 - kept]

    def final(self, facts: Facts) -> list[float]:
        n = len(facts.draft_tokens)
        kept = 0
        while kept < n and facts.picked[Purpose.ACCEPT, kept] == 0:
            kept += 1
        return leftover(facts, kept, n, 1.0)


class RejectionRule(SpsRule):
    """Cells of rejection sampling without iteration: FINAL follows the target's distribution."""

    def accept(self, facts: Facts, slot: int) -> list[float]:
        if any(facts.picked[Purpose.ACCEPT, i] == 1 for i in range(slot)):
            return [1.0]
        before = facts.after(slot)
        laws = zip(facts.q(before), facts.p(before), strict=True)
        greatest = max(q / p if p > 0 else (inf if q > 0 else 0.0) for q, p in laws)
        kept = quotient(facts, slot) / greatest
        return [kept, 1 - kept]

    def final(self, facts: Facts) -> list[float]:
        n = len(facts.draft_tokens)
        kept = next((i for i in range(n) if facts.picked[Purpose.ACCEPT, i] == 1), n)
        return list(facts.q(facts.after(kept)))


class BlockRule(WrittenRule):
    """Cells of block verification: the longest passing prefix, tested from last to first."""

    def order(self, purpose: Purpose, n: int) -> range:
        return range(n)[::-1] if purpose is Purpose.ACCEPT else range(n)

    def accept(self, facts: Facts, slot: int) -> list[float]:
        n = len(facts.draft_tokens)
        if any(facts.picked[Purpose.ACCEPT, i] == 0 for i in range(slot + 1, n)):
            return [1.0]
        kept = weight = weights(facts)[slot + 1]
        if slot + 1 < n:
            before = facts.after(slot + 1)
            laws = zip(facts.q(before), facts.p(before), strict=True)
            over = sum(max(weight * q - p, 0.0) for q, p in laws)
            kept = 1.0 if over + 1 - weight == 0 else over / (over + 1 - weight)
        return [kept, 1 - kept]

    def final(self, facts: Facts) -> list[float]:
        n = len(facts.draft_tokens)
        passed = [i + 1 for i in range(n) if facts.picked[Purpose.ACCEPT, i] == 0]
        # An irrelevant test has the single cell 0; only the longest prefix counts.
        kept = max(passed, default=0)
        return leftover(facts, kept, n, weights(facts)[kept])


class MatchRule(WrittenRule):
    """Cells of match: PLAIN's uniform i + 1 matters only if node i was reached by equal tokens."""

    def plain(self, facts: Facts, slot: int) -> list[float]:
        tokens = facts.draft_tokens
        parents = list(range(-1, len(tokens) - 1))
        if facts.draft is not None and facts.draft.parents is not None:
            parents = facts.draft.parents.tolist()
        path: list[int] = []
        node = slot - 1
        while node >= 0:
            siblings = [i for i, parent in enumerate(parents) if parent == parents[node]]
            first = next(i for i in siblings if tokens[i] == tokens[node])
            if first != node or facts.picked[Purpose.PLAIN, parents[node] + 1] != tokens[node]:
                return [1.0]
            path.insert(0, tokens[node])
            node = parents[node]
        return list(facts.q((*facts.text, *path)))


RULES: dict[str, type[WrittenRule]] = {
    "sps": SpsRule,
    "rejection": RejectionRule,
    "block": BlockRule,
    "match": MatchRule,
    "traversal": BlockRule,  # equivalent of the tree rules on a chain
    "recursive": SpsRule,
    "spectr": SpsRule,
}


def quotient(facts: Facts, slot: int) -> float:
    """Return q / p of the token in `slot`; 0 if the draft model cannot draw it."""
    before, token = facts.after(slot), facts.after(slot + 1)[-1]
    p = facts.p(before)[token]
    return facts.q(before)[token] / p if p > 0 else 0.0


def weights(facts: Facts) -> list[float]:
    """Return for each prefix of the draft the product of q / p, cut at 1 after each factor."""
    running = [1.0]
    for slot in range(len(facts.draft_tokens)):
        running.append(min(1.0, running[-1] * quotient(facts, slot)))
    return running


def leftover(facts: Facts, kept: int, n: int, weight: float) -> list[float]:
    """Return the probs of the token after `kept` of `n`: (weight q - p)+ rescaled, q after all."""
    q = facts.q(facts.after(kept))
    if kept == n:
        return list(q)
    p = facts.p(facts.after(kept))
    over = [max(weight * a - b, 0.0) for a, b in zip(q, p, strict=True)]
    total = sum(over)
    return [x / total for x in over] if total > 0 else list(q)


def cells_of(name: str, verifier: Verifier) -> RuleCells:
    """Return the written cells of the rule called `name`; of others those that the search finds."""
    return RULES[name]() if name in RULES else DiscoveredRule(verifier)


def case(name: str, verifier: Verifier, pair: ToyPair, **fields: Any) -> Case:
    """Return a case of the pair's two tables under the rule called `name`."""
    return Case(verifier, cells_of(name, verifier), pair.q, pair.p, pair.vocab, **fields)
