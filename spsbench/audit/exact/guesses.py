"""Where a rule's decisions are likely to change: points to look at first, never taken on trust.

The thresholds of acceptance rules are made of the same few numbers: quotients q / p, their running
product, the chances of block verification, sums of laws and residuals. A search that looks there
first need not halve intervals fifty times; a rule whose thresholds are elsewhere is searched as
before.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

Law = Sequence[float]

STEPS = 6  # of `methods.verifiers.spectr` towards rho


def guesses(
    q: Sequence[Law],
    p: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int] | None = None,
) -> list[float]:
    """Points inside (0, 1), in order, for a draft of `tokens`.

    Args:
        q: [N + 1] the target's laws as a verifier is given them.
        p: [N] the draft's, or none for tokens that came by rule.
        parents: [N] of a tree.
    """
    found = {edge for law in q for edge in edges(law)}
    weight = 1.0
    if parents is not None or not p:  # the walk of a chain by rule is that of a tree
        above = range(-1, len(tokens) - 1) if parents is None else parents
        found.update(of_trees(q, p, tokens, above))
        if p:
            found.update(of_tries(q, p, tokens, above))
    else:
        for slot, token in enumerate(tokens):
            found.update(edge for w in {1.0, weight} for edge in edges(over(w, q[slot], p[slot])))
            quotient = q[slot][token] / p[slot][token] if p[slot][token] > 0 else 0.0
            weight = min(1.0, weight * quotient)
            found |= {quotient, weight}
            if slot + 1 < len(p):
                excess = sum(over(weight, q[slot + 1], p[slot + 1]))
                found.add(excess / (excess + 1 - weight) if excess + 1 > weight else 1.0)
    return sorted(point for point in found if 0 < point < 1)


def of_trees(
    q: Sequence[Law], p: Sequence[Law], tokens: Sequence[int], parents: Sequence[int]
) -> Iterator[float]:
    """What sibling after sibling leaves, of independent and of distinct ones, from either weight.

    A node begins with the weight 1 where it is walked down to, else with its own chance.
    """
    for distinct in False, True:
        for whole in False, True:
            chance = {-1: 1.0}
            for node in range(-1, len(tokens)):
                children = [i for i, parent in enumerate(parents) if parent == node]
                weight = 1.0 if whole else chance[node]
                left = [weight * x for x in q[node + 1]]
                for rank, child in enumerate(children):
                    law = one_hot(tokens[child], len(left))
                    if p:
                        gone = [tokens[i] for i in children[:rank]] if distinct else []
                        law = [0.0 if x in gone else w for x, w in enumerate(p[child])]
                    total, token = sum(law), tokens[child]
                    law = [x / total if total > 0 else 0.0 for x in law]
                    chance[child] = min(1.0, left[token] / law[token]) if law[token] > 0 else 0.0
                    rest = over(1.0, left, law)
                    room = sum(rest) + (1 - weight)
                    left = [x / room for x in rest] if room > 0 else left
                    weight = sum(rest) / room if room > 0 else 1.0
                    yield chance[child]
                yield weight
                yield from edges(left)


def of_tries(
    q: Sequence[Law], p: Sequence[Law], tokens: Sequence[int], parents: Sequence[int]
) -> Iterator[float]:
    """Yield what k independent siblings leave, each tested with min(1, q / (rho p)), first to last.

    Rho comes down from k as in `methods.verifiers.spectr`. Nodes after equal texts are siblings.
    """
    texts: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        texts.append((*texts[parent + 1], token))
    for text in dict.fromkeys(texts):
        below = [node for node, parent in enumerate(parents) if texts[parent + 1] == text]
        if not below:
            continue
        own, law, rho, worth = q[texts.index(text)], p[below[0]], float(len(below)), 0.0
        for _ in range(STEPS + 1):
            kept = [min(a, b / rho) for a, b in zip(law, own, strict=True)]
            beta = min(sum(kept), 1.0)
            worth = (1 - (1 - beta) ** len(below)) / beta if beta > 0 else float(len(below))
            last, rho = rho, worth
        yield from (own[x] / (last * law[x]) for x in {tokens[i] for i in below} if law[x] > 0)
        yield from edges(over(1.0, own, [worth * x for x in kept]))


def one_hot(token: int, size: int) -> list[float]:
    """All on one token."""
    return [float(x == token) for x in range(size)]


def over(weight: float, q: Law, p: Law) -> list[float]:
    """(weight q - p)+."""
    return [max(weight * a - b, 0.0) for a, b in zip(q, p, strict=True)]


def edges(weights: Law) -> Iterator[float]:
    """Where the cells of an inverse CDF end."""
    total = sum(weights)
    return (edge / total for edge in accumulate(weights) if total > 0)
