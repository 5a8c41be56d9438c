"""A drafter of each kind that there can be, small enough to be enumerated.

What a verifier may be paired with depends on how a draft was drawn (`types.Drawn`) and whether it
branches. The registry need not hold a drafter of every kind; these stand in for the missing ones.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.audit.law.thresholds import Facts
from spsbench.loop.sampling import sample
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose, Scores


class ArgmaxDrafter(Drafter):
    """The draft model's likeliest tokens; no law, so only one-sample match may follow."""

    drawn = Drawn.POINT

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Empty the cache."""
        self.lm.commit(0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """`k` tokens."""
        tokens: list[Tensor] = []
        self.lm.commit(min(self.lm.length, len(context.tokens) - 1))
        feed = torch.tensor(context.tokens[self.lm.length :])
        for _ in range(k):
            feed = self.lm.append(feed, keep=1).logits.argmax(-1)
            tokens.append(feed)
        return Draft(torch.cat(tokens) if tokens else torch.empty(0, dtype=torch.int64), None)


class FixedDrafter(Drafter):
    """Always the same draft, cut to a depth of `k`."""

    drawn = Drawn.POINT

    def __init__(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self.tokens, self.parents = list(tokens), parents
        self.tree = parents is not None
        self.calls = 0

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Count the calls anew."""
        self.calls = 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """The nodes above depth `k`."""
        self.calls += 1
        if self.parents is None:
            return Draft(torch.tensor(self.tokens[:k], dtype=torch.int64), None)
        depth = [0] * len(self.tokens)
        for node, parent in enumerate(self.parents):
            depth[node] = depth[parent] + 1 if parent >= 0 else 0
        fits = torch.tensor([d < k for d in depth])
        # Nodes come parents first, so that cutting at a depth keeps the numbers of those above.
        kept = fits.nonzero()[:, 0]
        number = {-1: -1, **{old: new for new, old in enumerate(kept.tolist())}}
        above = torch.tensor([number[int(self.parents[i])] for i in kept], dtype=torch.int64)
        return Draft(torch.tensor(self.tokens)[kept], None, above)


class SiblingsDrafter(Drafter):
    """Two sampled children of the context: independent, or the second without the first."""

    tree = True

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Empty the cache."""
        self.lm.commit(0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Two nodes of depth one; without a second token of any weight, one."""
        none = Draft(torch.empty(0, dtype=torch.int64), None)
        if k == 0:
            return none
        u = noise.uniform(Purpose.DRAFT, 2)
        self.lm.commit(0)
        law = context.warp(self.lm.append(torch.tensor(context.tokens), keep=1).logits)[0]
        first = sample(law, u[0])
        rest = law
        if self.drawn is Drawn.DISTINCT:
            rest = law.index_fill(0, first[None], 0.0)
        if float(rest.sum()) <= 0:
            return Draft(first[None], law[None], torch.tensor([-1]))
        tokens = torch.stack([first, sample(rest, u[1])])
        return Draft(tokens, torch.stack([law, law]), torch.tensor([-1, -1]))


class IidSiblings(SiblingsDrafter):
    """Siblings drawn independently."""

    drawn = Drawn.IID


class DistinctSiblings(SiblingsDrafter):
    """Siblings drawn without replacement."""

    drawn = Drawn.DISTINCT


def siblings_drawn(facts: Facts, slot: int) -> list[float]:
    """Cells of `IidSiblings`: both follow the law after the text."""
    return list(facts.p(facts.text))


def distinct_drawn(facts: Facts, slot: int) -> list[float]:
    """Cells of `DistinctSiblings`: the second follows the law without the first."""
    law = list(facts.p(facts.text))
    if slot == 0:
        return law
    law[facts.picked[Purpose.DRAFT, 0]] = 0.0
    total = sum(law)
    return [x / total for x in law] if total > 0 else [1.0]


class DraftKind(NamedTuple):
    """A way to draft, and the cells of its uniforms."""

    name: str
    make: Callable[[LM], Drafter]
    drawn: Callable[[Facts, int], list[float]] = Facts.drawn


DEEP = (1, 0, 1, 0, 1)  # below the third node: a tree of depth 6 where K is as large

REFERENCE = (
    DraftKind("(argmax chain)", ArgmaxDrafter),
    DraftKind(
        "(fixed tree)", lambda lm: FixedDrafter((0, 1, 0, *DEEP), (-1, -1, 0, 2, 2, 3, 5, 6))
    ),
    DraftKind("(i.i.d. siblings)", IidSiblings, siblings_drawn),
    DraftKind("(distinct siblings)", DistinctSiblings, distinct_drawn),
)
"""Stand-ins for kinds that the registry may lack; their names are in brackets."""
