"""Trees whose shape is known before a token is drawn: what is drawn is a tree's only randomness.

The shape is the user's (`Tree`), or the best for measured acceptance (`Sequoia`).

The children of a node are drawn from one distribution in one of three ways; all nodes of a depth
are fed in one pass. Fewer are drawn than the shape has where a schedule says so, and where no other
token has any weight. So the number of nodes depends on distributions, never on values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.loop.sampling import confidence_probs, sample, send, without_replacement
from spsbench.loop.tree import MAX_NODES, tree_of
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose
from spsbench.methods.drafters.frontier import Arguments, Frontier, FrontierDrafter
from spsbench.metrics.sums import group_by

SIBLINGS = {"iid": Drawn.IID, "distinct": Drawn.DISTINCT, "top": Drawn.POINT}
"""Ways to draw the children of a node."""

Floats = NDArray[np.float64]

ACCEPTED = "0.41/0.17/0.12/0.09/0.04/0.04/0.04/0.02"
"""Measured on the bundled pair at temperature 1, top children and match: `sibling_at` of a run."""


class ShapedDrafter(FrontierDrafter):
    """A drafter along `shape`, the parents of the nodes of a tree, level by level.

    Slot i of DRAFT's uniforms is that of node i of the whole shape, whatever is left out before it.
    """

    tree = True

    def __init__(self, frontier: Frontier, shape: Sequence[int], drawn: Drawn) -> None:
        super().__init__(frontier)
        self.drawn, self.shape = drawn, tuple(shape)
        self._children = group_by(range(len(shape)), self.shape.__getitem__)
        deep = tree_of(shape).depth[1:]
        self._upto = list(accumulate(map(deep.count, range(max(deep, default=0) + 1))))

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draw the tree's first `k` levels, one pass each, within `context.nodes`.

        Nodes come level by level; those whose parents get fewer children (`_child_counts`) are left
        out, and all below them. Deterministic siblings have no probs.
        """
        frontier = self._frontier
        frontier.settle(context)
        k = frontier.depth(context, k)
        most = context.fit(self._upto[-1])
        if k == 0 or most <= 0:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        u = (
            None
            if self.drawn is Drawn.POINT
            else noise.uniform(Purpose.DRAFT, self._upto[min(k, len(self._upto) - 1)])
        )
        number = {-1: -1}  # slot of the shape -> node of the draft
        parents: list[int] = []
        tokens: list[Tensor] = []
        p: list[Tensor] = []
        slots, logits = [-1], frontier.root(context)
        for depth in range(k):
            probs = context.warp(logits)  # [R, V]
            counts = self._child_counts(slots, logits, probs, context, go_on)
            fits = [(r, j) for r, count in enumerate(counts) for j in range(count)]
            fits = fits[: most - len(parents)]
            if not fits:
                break
            drawn = self._draw(logits, probs, slots, max(counts), u)  # [R, W]
            rows, ranks = (send(torch.tensor(x), probs.device) for x in zip(*fits, strict=True))
            fed_tokens = drawn[rows, ranks]
            tokens.append(fed_tokens)
            if u is not None:
                p.append(probs[rows])
            drew = [self._children[slots[r]][j] for r, j in fits]
            for slot, (r, _) in zip(drew, fits, strict=True):
                number[slot] = len(parents)
                parents.append(number[slots[r]])
            ahead = frontier.fitting([i for i, slot in enumerate(drew) if slot in self._children])
            if depth + 1 == k or not ahead or len(parents) >= most:
                break
            slots = [drew[i] for i in ahead]
            nodes = [number[slot] for slot in slots]
            fed = fed_tokens[send(torch.tensor(ahead), probs.device)]
            logits = frontier.feed(fed, nodes, [parents[node] for node in nodes])
        if not parents:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.cat(tokens), torch.cat(p) if p else None, torch.tensor(parents))

    def _child_counts(
        self, slots: Sequence[int], logits: Tensor, probs: Tensor, context: Context, go_on: GoOn
    ) -> list[int]:
        """Return how many children each node of `slots` gets: the shape's, or 0 if `go_on` refuses.

        Distinct ones are no more than tokens of weight; of independent ones one is enough where a
        token has all of it. `context.nodes` is left to the caller.
        """
        sure = confidence_probs(context.warp, logits, probs)
        counts = [min(len(self._children[slot]), probs.shape[-1]) for slot in slots]
        if self.drawn is not Drawn.POINT:
            possible = (probs > 0).sum(-1).tolist()
            if self.drawn is Drawn.IID:  # one child is enough where a token is sure
                possible = [most if n > 1 else n for most, n in zip(counts, possible, strict=True)]
            counts = [min(most, n) for most, n in zip(counts, possible, strict=True)]
        return [most if go_on(sure[r]) else 0 for r, most in enumerate(counts)]

    def _draw(
        self, logits: Tensor, probs: Tensor, slots: Sequence[int], most: int, u: Tensor | None
    ) -> Tensor:
        """Return [R, `most`] children of R `slots`, drawn as `drawn` by `u`; None: likeliest."""
        if u is None:
            return logits.topk(most).indices
        padded = [[*self._children[slot][:most]] for slot in slots]
        padded = [[*row, *[row[-1]] * (most - len(row))] for row in padded]
        uniforms = u[send(torch.tensor(padded), u.device)]
        if self.drawn is Drawn.DISTINCT:
            return without_replacement(probs, uniforms)
        return sample(probs[:, None].expand(-1, most, -1), uniforms)


@dataclass(frozen=True)
class Tree(Arguments):
    """A drafter of trees such as `3x2x1`: three children of the text, two of each of those, ...

    Args:
        shape: the children of a node at each depth.
        siblings: `top`, the likeliest ones by rule; `iid`, drawn independently; `distinct`, drawn
            without replacement (section 4.3 of SpecInfer; EAGLE-1 and Sequoia draw so).
    """

    tree: ClassVar[bool] = True

    shape: str | int = "3x2x1"
    siblings: str = "top"

    def __post_init__(self) -> None:
        parents_of(self.shape)

    @property
    def drawn(self) -> Drawn:
        return drawn_as(self.siblings)

    def over(self, frontier: Frontier) -> Drafter:
        return ShapedDrafter(frontier, parents_of(self.shape), self.drawn)


@dataclass(frozen=True)
class Sequoia(Arguments):
    """A tree drafter whose shape maximises tokens a round (arXiv 2402.12374).

    The shape is found once, by dynamic programming (section 4.1), so it depends on no token. Its
    depth is at most K: a smaller K cuts it.

    Args:
        nodes: nodes of the tree at most.
        depth: depth of the tree at most.
        accept: the chance that the first, second ... child of a node is kept, of those looked at
            because none before it was: `sibling_at` of a run, with / between them.
        siblings: as of `tree`; `distinct` is the paper's.
    """

    tree: ClassVar[bool] = True
    ranges: ClassVar = {"nodes": (1, 256), "depth": (1, 32)}

    nodes: int = 32
    depth: int = 8
    accept: str | float = ACCEPTED
    siblings: str = "top"

    def __post_init__(self) -> None:
        parse_probabilities(self.accept)

    @property
    def drawn(self) -> Drawn:
        return drawn_as(self.siblings)

    def over(self, frontier: Frontier) -> Drafter:
        shape = best_shape(self.nodes, self.depth, parse_probabilities(self.accept))
        return ShapedDrafter(frontier, shape, self.drawn)


@lru_cache(maxsize=32)
def best_shape(nodes: int, depth: int, accept: tuple[float, ...]) -> tuple[int, ...]:
    """Return the parents of the tree of most expected tokens, level by level; -1: the context.

    `accept` has each child's chance to be kept once those before it were not. `gain[d][b][n]` is
    the most that n nodes bring as the children from the b-th on, and all below them, of a kept node
    with room for depth d: the first takes `first[d][b][n]`, itself included.
    """
    chances = kept_chances(accept)
    sizes = depth + 1, len(chances) + 1, nodes + 1
    gain, first = np.zeros(sizes), np.zeros(sizes, dtype=np.int64)
    for d in range(1, depth + 1):
        below = 1 + gain[d - 1, 0]  # [nodes + 1] of a kept child with that many below it
        for b in range(len(chances) - 1, -1, -1):
            for n in range(1, nodes + 1):
                # y = 1 ... n nodes for child b, the rest for those after it
                gains = chances[b] * below[:n] + gain[d, b + 1, n - 1 :: -1][:n]
                first[d, b, n] = y = int(gains.argmax()) + 1
                gain[d, b, n] = gains[y - 1]
    parents: list[int] = []
    level = [(-1, nodes, depth)]  # a node, and how many may be below it, how deep
    while level:
        after: list[tuple[int, int, int]] = []
        for parent, left, d in level:
            for b in range(len(chances) if d else 0):
                if left <= 0:
                    break
                taken = int(first[d, b, left])
                after.append((len(parents), taken - 1, d - 1))
                parents.append(parent)
                left -= taken
        level = after
    return tuple(parents)


def kept_chances(accept: tuple[float, ...]) -> Floats:
    """Return [B], the chance that the k-th child is kept, given that its parent was."""
    looked_at = np.cumprod([1.0, *(1 - np.array(accept[:-1]))])
    return np.asarray(looked_at * np.array(accept))


def parse_probabilities(text: str | float) -> tuple[float, ...]:
    """Parse probabilities separated by `/`; ValueError: none, or one outside 0 to 1."""
    try:
        probabilities = tuple(float(part) for part in str(text).split("/"))
    except ValueError:
        probabilities = ()
    if not probabilities or not all(0 <= chance <= 1 for chance in probabilities):
        raise ValueError(f"accept is {text!r}: expected chances from 0 to 1, as in 0.6/0.2/0.1")
    return probabilities


def drawn_as(siblings: str) -> Drawn:
    """Return the `Drawn` that a word for siblings means; ValueError: another word."""
    if siblings not in SIBLINGS:
        raise ValueError(f"siblings is {siblings!r}: expected one of {', '.join(SIBLINGS)}")
    return SIBLINGS[siblings]


def parents_of(shape: str | int) -> list[int]:
    """Return the parents (-1: the context) of a tree, level by level: see `Tree` for `3x2x1`.

    ValueError: not such widths, or more than `MAX_NODES` nodes.
    """
    widths = str(shape).split("x")
    if not all(width.isdecimal() and int(width) > 0 for width in widths):
        raise ValueError(f"shape is {shape!r}: expected widths from 1, as in 3x2x1")
    parents, level = list[int](), [-1]
    for width in map(int, widths):
        if len(parents) + len(level) * width > MAX_NODES:
            raise ValueError(f"shape is {shape!r}: expected at most {MAX_NODES} nodes")
        first = len(parents)
        parents += [above for above in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return parents
