"""Reference drafters of every kind, small enough for enumeration.

The pairings that a verifier accepts depend on the sampling of the draft (`types.Drawn`) and on
branching. The reference drafters stand in for kinds that the registry lacks.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.audit.exact.cases import AT_ZERO, MAX_K, SURE, CaseSetting, Facts
from spsbench.audit.exact.tables import ToyPair
from spsbench.loop.tree import tree_of
from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose, Scores
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.shaped import ShapedDrafter


class ArgmaxDrafter(Drafter):
    """Drafter of the draft model's argmax: deterministic, so that only `match` may follow."""

    drawn = Drawn.POINT

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.lm.commit(0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return a chain of `k` tokens: the draft model's argmax, each fed to it for the next."""
        tokens: list[Tensor] = []
        self.lm.commit(min(self.lm.length, len(context.tokens) - 1))
        feed = torch.tensor(context.tokens[self.lm.length :])
        for _ in range(k):
            feed = self.lm.append(feed, keep=1).logits.argmax(-1)
            tokens.append(feed)
        return Draft(torch.cat(tokens) if tokens else torch.empty(0, dtype=torch.int64), None)


class FixedDrafter(Drafter):
    """Drafter that returns the same draft always, cut to a depth of `k`."""

    drawn = Drawn.POINT

    def __init__(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self.tokens, self.parents = list(tokens), parents
        self.tree = parents is not None
        self.calls = 0

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.calls = 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return the fixed nodes of depth up to `k`, renumbered, whatever the text; count calls."""
        self.calls += 1
        if self.parents is None:
            return Draft(torch.tensor(self.tokens[:k], dtype=torch.int64), None)
        depth = tree_of(self.parents).depth[1:]
        kept = [node for node in range(len(depth)) if depth[node] <= k]
        number = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        above = [number[int(self.parents[i])] for i in kept]
        tokens = [self.tokens[i] for i in kept]
        return Draft(torch.tensor(tokens).long(), None, torch.tensor(above).long())


def tree_cells(parents: Sequence[int], drawn: Drawn) -> Callable[[Facts, int], list[float]]:
    """Return (facts, slot) -> cell widths of the uniform that draws a slot's node in a tree.

    They are p after the node's ancestors; [1.0], one cell, where it cannot be drawn.
    """

    def child_probs(facts: Facts, tokens: Sequence[int | None], node: int) -> list[float]:
        """Return [V] the probs that `node` is drawn from; [] where a node above it was not drawn.

        They are unnormalised if siblings are distinct: those drawn before it have 0.
        """
        path: list[int] = []
        above = parents[node]
        while above >= 0:
            token = tokens[above]
            if token is None:
                return []
            path.insert(0, token)
            above = parents[above]
        probs = list(facts.p((*facts.text, *path)))
        if drawn is Drawn.DISTINCT:
            for token, parent in zip(tokens, parents[:node], strict=True):
                if parent == parents[node] and token is not None:
                    probs[token] = 0.0
        return probs

    def cells(facts: Facts, slot: int) -> list[float]:
        """Return the widths of the cells of a slot's uniform, given the cells picked before it."""
        tokens: list[int | None] = []
        for node in range(slot):
            possible = sum(child_probs(facts, tokens, node)) > 0
            tokens.append(facts.picked[Purpose.DRAFT, node] if possible else None)
        probs = child_probs(facts, tokens, slot)
        total = sum(probs)
        return [x / total for x in probs] if total > 0 else [1.0]

    return cells


class DraftKind(NamedTuple):
    """A way to draft, and the cells of its uniforms."""

    name: str
    make: Callable[[LM], Drafter]
    drawn: Callable[[Facts, int], list[float]] | None = Facts.drawn  # None: by queries
    rounds: tuple[CaseSetting, ...] = ()  # walked instead of whole texts, which would be too many
    rule: str | None = None  # default verifier of the walk; None = every one
    upto: int = MAX_K  # largest K of the single rounds by default
    wide: bool = False  # more than two siblings: by default only with rules that use their p
    how: Drawn | None = None  # sampling of the nodes of a tree; None for chains


def tree_kind(
    name: str,
    parents: Sequence[int],
    drawn: Drawn,
    rounds: tuple[CaseSetting, ...] = (),
    *,
    wide: bool = False,
) -> DraftKind:
    """Return the kind of trees `parents`, level by level; `rounds` and `wide` as in `DraftKind`."""

    def make(lm: LM) -> Drafter:
        return ShapedDrafter(Frontier(lm), parents, drawn)

    return DraftKind(name, make, tree_cells(parents, drawn), rounds, wide=wide, how=drawn)


def both(
    name: str, parents: Sequence[int], rounds: tuple[CaseSetting, ...] = (), *, wide: bool = False
) -> list[DraftKind]:
    """Return the kinds of a shape with independent and with distinct siblings."""
    return [
        tree_kind(f"(i.i.d. {name})", parents, Drawn.IID, rounds, wide=wide),
        tree_kind(f"(distinct {name})", parents, Drawn.DISTINCT, rounds, wide=wide),
    ]


ONE = (0, 1)
PLAIN = CaseSetting("three tokens", ToyPair(3, 2, ("plain",)), 2, ONE)
ODD = CaseSetting("three tokens: ties, zeros, disjoint supports", ToyPair(3, 4), 2, ONE)
TWO = CaseSetting("two tokens", ToyPair(2, 3, ("plain",)), 2, ONE)
TWO_ODD = CaseSetting("ties, zeros, disjoint supports", ToyPair(2, 4), 2, (1, 0, 0))
TWO_WARPED = CaseSetting("warped", ToyPair(2, 5, ("plain",)), 2, (0,), {"temperature": 1.5})
GREEDY = CaseSetting("greedy", ToyPair(3, 4), 2, ONE, AT_ZERO)
WARPED = CaseSetting("three tokens, warped", ToyPair(3, 5, ("plain",)), 2, (0,), {"top_k": 2})
OFTEN_SURE = CaseSetting("two tokens, at times a sure one", ToyPair(2, 1, SURE), 2, ONE)

OF_SIBLINGS = (PLAIN, ODD, WARPED, GREEDY._replace(lookahead=1))
OF_THREE_DISTINCT = (  # over four tokens: after two rejections of three the third is certain
    CaseSetting("four tokens", ToyPair(4, 4, ("plain",)), 2, ONE),
    CaseSetting("four tokens: ties, zeros, disjoint supports", ToyPair(4, 4), 2, ONE),
)
OF_TREES = (TWO, TWO_ODD, GREEDY)
OF_DEEP_TREES = tuple(one._replace(lookahead=3) for one in OF_TREES)
OF_WIDE_TREES = (PLAIN, ODD._replace(prompt=(2, 0)))

SIBLINGS, TREE, FORKS = (-1, -1), (-1, -1, 0, 0, 1), (-1, -1, 0, 0, 1, 1)
LEAVES = (-1, -1, -1, -1)
BELOW = (1, 0, 1, 0, 1)  # parents below the third node: a tree of depth 6 if K is as large

REFERENCE = (
    DraftKind("(argmax chain)", ArgmaxDrafter),
    DraftKind(
        "(fixed tree)", lambda lm: FixedDrafter((0, 1, 0, *BELOW), (-1, -1, 0, 2, 2, 3, 5, 6))
    ),
    DraftKind(
        "(fixed siblings)", lambda lm: FixedDrafter((2, 0, 3), LEAVES[:3]), rounds=OF_THREE_DISTINCT
    ),
    *both("siblings", SIBLINGS, OF_SIBLINGS),
    *both("tree", TREE, OF_TREES, wide=True),
    tree_kind("(i.i.d. three siblings)", LEAVES[:3], Drawn.IID, (PLAIN, TWO_ODD), wide=True),
    tree_kind(
        "(distinct three siblings)", LEAVES[:3], Drawn.DISTINCT, OF_THREE_DISTINCT, wide=True
    ),
    tree_kind("(i.i.d. four siblings)", LEAVES, Drawn.IID, (PLAIN,), wide=True),
    tree_kind("(i.i.d. two forks)", FORKS, Drawn.IID, (OFTEN_SURE,), wide=True),
)
"""Stand-ins for kinds that the registry may lack, with names in brackets.

The drafters and the rules are stateless between rounds, so that trees are walked in single rounds.
"""

DEEP_KINDS = (  # half an hour of enumeration for all rules
    *both("siblings, whole texts", SIBLINGS),
    *both("wide siblings", LEAVES[:3], OF_WIDE_TREES),
    tree_kind("(i.i.d. five siblings)", (*LEAVES, -1), Drawn.IID, (TWO,)),
    *both("warped tree", TREE, (TWO_WARPED,)),
    *both("two chains", (-1, -1, 0, 1), OF_WIDE_TREES),
    *both("two long chains", (-1, -1, 0, 1, 2, 3), OF_DEEP_TREES),
    *both("stem and fork", (-1, 0, 0, 1, 1, 2), OF_DEEP_TREES),
    *both("three chains", (-1, -1, -1, 0, 1, 2), (*OF_TREES, TWO_WARPED)),
)
