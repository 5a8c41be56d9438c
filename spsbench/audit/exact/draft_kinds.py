"""Reference drafters of every kind, small enough for enumeration.

The pairings that a verifier accepts depend on the sampling of the draft (`types.Drawn`) and on
branching. The reference drafters stand in for kinds that the registry lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Facts
from spsbench.audit.exact.tables import Pair
from spsbench.loop.tree import tree_of
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Guarantee,
    Noise,
    Purpose,
    Schedule,
    Scores,
)
from spsbench.methods.drafters.shaped import ShapedDrafter
from spsbench.methods.schedules.by_history import Constant

MAX_K = 6  # the largest K

GREEDY = {"warp": {"temperature": 0.0}}


class OneRound(NamedTuple):
    """A case of one round: its name, laws, and the rest."""

    name: str
    pair: Pair
    lookahead: int
    fields: dict[str, Any]
    prompt: tuple[int, ...] = (0, 1, 0, 1, 0)

    @property
    def case(self) -> dict[str, Any]:
        """Return fields of a `Case`: texts of K + 1 tokens, so that the first round may draft K."""
        return {"tokens": self.lookahead + 1, "one_round": True, **self.fields}


SURE = ("plain", "sure", "sure")

ROUNDS = (
    *(OneRound("two tokens", Pair(2, 40 + k, ("plain",)), k, {}) for k in (3, 4)),
    *(
        OneRound("a sure draft model", Pair(2, seed, SURE), k, {})
        for k, seed in ((5, 65), (MAX_K, 53))
    ),
    *(
        OneRound("ties, zeros, disjoint laws", Pair(2, 60 + k), k, {}, (1, 0, 0, 1, 0, 0, 1))
        for k in range(3, MAX_K)
    ),
    OneRound(
        "three tokens, warped",
        Pair(3, 8, ("plain", "ties")),
        3,
        {"warp": {"temperature": 1.5, "top_k": 2}},
        (2, 0, 1, 2, 0, 1),
    ),
    OneRound("greedy", Pair(3, 9), MAX_K, GREEDY),
)
"""Cases in the order of K, so that a rule that is wrong from some slot on fails at its first K.

Most paths of a long draft differ in tokens alone: a deterministic draft model omits those.
"""

DEEP_ROUNDS = tuple(OneRound("two tokens", Pair(2, 40 + k, ("plain",)), k, {}) for k in (5, MAX_K))
"""Cases with every value of long drafts: hundreds of paths for each rule."""


def one_rounds(
    claim: Guarantee,
    schedule: Callable[[], Schedule],
    most: int = MAX_K,
    *,
    deep: bool = False,
    small: bool = False,
) -> Iterator[tuple[OneRound, Schedule]]:
    """Yield the cases up to K = `most` for a guarantee, each with its schedule.

    `deep` adds cases, `small` selects those over two tokens. A schedule that is not constant
    chooses K itself, up to the largest.
    """
    constant = isinstance(schedule(), Constant)
    for one in sorted((*ROUNDS, *(DEEP_ROUNDS if deep else ())), key=lambda one: one.lookahead):
        if claim is Guarantee.GREEDY and one.fields != GREEDY:
            continue
        if (one.lookahead > most or (small and one.pair.vocab > 2)) and one.fields != GREEDY:
            continue
        if constant:
            yield one, Constant(one.lookahead)
        elif one.lookahead == MAX_K:
            yield one, schedule()


class ArgmaxDrafter(Drafter):
    """Drafter of the draft model's argmax; without a law, so only one-sample match may follow."""

    drawn = Drawn.POINT

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Empty the cache."""
        self.lm.commit(0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft `k` tokens."""
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
        """Count the calls anew."""
        self.calls = 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft the nodes down to depth `k`."""
        self.calls += 1
        if self.parents is None:
            return Draft(torch.tensor(self.tokens[:k], dtype=torch.int64), None)
        kept = shallow(self.parents, k)
        number = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        above = [number[int(self.parents[i])] for i in kept]
        tokens = [self.tokens[i] for i in kept]
        return Draft(torch.tensor(tokens).long(), None, torch.tensor(above).long())


def shallow(parents: Sequence[int], k: int) -> list[int]:
    """Return the nodes down to depth `k`."""
    return [node for node, depth in enumerate(tree_of(parents).depth[1:]) if depth <= k]


@dataclass(frozen=True)
class TreeDrawn:
    """Cells of a `ShapedDrafter`: each node follows the law after its ancestors."""

    parents: Sequence[int]
    drawn: Drawn

    def __call__(self, facts: Facts, slot: int) -> list[float]:
        """Return the widths of the cells of node `slot`; one cell where it cannot be drawn."""
        tokens: list[int | None] = []
        for node, parent in enumerate(self.parents[: slot + 1]):
            law = self._law(facts, tokens, node, parent)
            if node == slot:
                total = sum(law)
                return [x / total for x in law] if total > 0 else [1.0]
            tokens.append(facts.picked[Purpose.DRAFT, node] if sum(law) > 0 else None)
        raise IndexError(slot)

    def _law(
        self, facts: Facts, tokens: Sequence[int | None], node: int, parent: int
    ) -> list[float]:
        path: list[int] = []
        above = parent
        while above >= 0:
            token = tokens[above]
            if token is None:
                return []
            path.insert(0, token)
            above = self.parents[above]
        law = list(facts.p((*facts.text, *path)))
        if self.drawn is Drawn.DISTINCT:
            for token, of in zip(tokens, self.parents[:node], strict=True):
                if of == parent and token is not None:
                    law[token] = 0.0
        return law


class DraftKind(NamedTuple):
    """A way to draft, and the cells of its uniforms."""

    name: str
    make: Callable[[LM], Drafter]
    drawn: Callable[[Facts, int], list[float]] | None = Facts.drawn  # None: by queries
    rounds: tuple[OneRound, ...] = ()  # walked instead of whole texts, which would be too many
    rule: str | None = None  # default verifier of the walk; None = every one
    upto: int = MAX_K  # largest K of the single rounds by default
    wide: bool = False  # more than two siblings: by default only with rules that use their laws
    how: Drawn | None = None  # sampling of the nodes of a tree; None for chains


def sampled(
    name: str,
    parents: Sequence[int],
    drawn: Drawn,
    rounds: tuple[OneRound, ...] = (),
    *,
    wide: bool = False,
) -> DraftKind:
    """Return the kind of trees of one shape, whose nodes come level by level."""
    make = partial(ShapedDrafter, shape=parents, drawn=drawn)
    return DraftKind(name, make, TreeDrawn(parents, drawn), rounds, wide=wide, how=drawn)


def both(
    name: str, parents: Sequence[int], rounds: tuple[OneRound, ...] = (), *, wide: bool = False
) -> list[DraftKind]:
    """Return the kinds of a shape with independent and with distinct siblings."""
    return [
        sampled(f"(i.i.d. {name})", parents, Drawn.IID, rounds, wide=wide),
        sampled(f"(distinct {name})", parents, Drawn.DISTINCT, rounds, wide=wide),
    ]


TWO = OneRound("two tokens", Pair(2, 3, ("plain",)), 2, {}, (0, 1))
MIXED = OneRound("ties, zeros, disjoint laws", Pair(2, 4), 2, {}, (1, 0, 0))
WARPED = OneRound("warped", Pair(2, 5, ("plain",)), 2, {"warp": {"temperature": 1.5}}, (0,))
ALONE = OneRound("greedy", Pair(3, 4), 2, GREEDY, (0, 1))

OF_SIBLINGS = (
    OneRound("three tokens", Pair(3, 2, ("plain",)), 2, {}, (0, 1)),
    OneRound("three tokens: ties, zeros, disjoint laws", Pair(3, 4), 2, {}, (0, 1)),
    OneRound("three tokens, warped", Pair(3, 5, ("plain",)), 2, {"warp": {"top_k": 2}}, (0,)),
    OneRound("greedy", Pair(3, 4), 1, GREEDY, (0, 1)),
)

OF_THREE = (
    OneRound("three tokens", Pair(3, 2, ("plain",)), 2, {}, (0, 1)),
    OneRound("ties, zeros, disjoint laws", Pair(2, 4), 2, {}, (1, 0, 0)),
)

OF_THREE_DISTINCT = (
    OneRound("four tokens", Pair(4, 4, ("plain",)), 2, {}, (0, 1)),
    OneRound("four tokens: ties, zeros, disjoint laws", Pair(4, 4), 2, {}, (0, 1)),
)
"""Trees over four tokens, because the third distinct sibling of three tokens is certain.

After two rejections more than one of four tokens is left, so the law of the third sibling matters.
"""

OF_FOUR = (OneRound("three tokens", Pair(3, 2, ("plain",)), 2, {}, (0, 1)),)

OF_FIVE = (OneRound("two tokens", Pair(2, 3, ("plain",)), 2, {}, (0, 1)),)

OF_FORKS = (OneRound("two tokens, at times a sure one", Pair(2, 1, SURE), 2, {}, (0, 1)),)

OF_TREES = (TWO, MIXED, ALONE)

OF_DEEP_TREES = tuple(one._replace(lookahead=3) for one in OF_TREES)

OF_WIDE_TREES = (
    OneRound("three tokens", Pair(3, 2, ("plain",)), 2, {}, (0, 1)),
    OneRound("three tokens: ties, zeros, disjoint laws", Pair(3, 4), 2, {}, (2, 0)),
)

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
    sampled("(i.i.d. three siblings)", LEAVES[:3], Drawn.IID, OF_THREE, wide=True),
    sampled("(distinct three siblings)", LEAVES[:3], Drawn.DISTINCT, OF_THREE_DISTINCT, wide=True),
    sampled("(i.i.d. four siblings)", LEAVES, Drawn.IID, OF_FOUR, wide=True),
    sampled("(i.i.d. two forks)", FORKS, Drawn.IID, OF_FORKS, wide=True),
)
"""Stand-ins for kinds that the registry may lack, with names in brackets.

The drafters and the rules are stateless between rounds, so that trees are walked in single rounds.
"""

DEEP_KINDS = (
    *both("siblings, whole texts", SIBLINGS),
    *both("wide siblings", LEAVES[:3], OF_WIDE_TREES),
    sampled("(i.i.d. five siblings)", (*LEAVES, -1), Drawn.IID, OF_FIVE),
    *both("warped tree", TREE, (WARPED,)),
    *both("two chains", (-1, -1, 0, 1), OF_WIDE_TREES),
    *both("two long chains", (-1, -1, 0, 1, 2, 3), OF_DEEP_TREES),
    *both("stem and fork", (-1, 0, 0, 1, 1, 2), OF_DEEP_TREES),
    *both("three chains", (-1, -1, -1, 0, 1, 2), (*OF_TREES, WARPED)),
)
"""Larger kinds: half an hour of enumeration for all rules."""
