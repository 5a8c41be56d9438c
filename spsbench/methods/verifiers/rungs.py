"""Siblings tested one after the other, by a rule that looks at its uniforms as it walks.

The states are those of `ladder`, where they are explained. Here a node is looked at when the walk
comes to it, and a row of the vocabulary is gone through only where what follows depends on it: not
for the chance of a first child, nor for a test that no weight could pass.
"""

from torch import Tensor, empty_like, finfo, sub

from spsbench.loop.types import Draft, Drawn
from spsbench.methods.verifiers.tree_tables import Shape, numbers


class Tree:
    """A draft, the target's laws `q` [N + 1, V] of it, and both chances of each token."""

    def __init__(self, draft: Draft, q: Tensor, shape: Shape) -> None:
        self.draft, self.q, self.shape = draft, q, shape
        self.tokens: list[int] = draft.tokens.tolist()
        above = numbers([parent + 1 for parent in shape.parents])
        self.own: list[float] = q[above, draft.tokens].tolist()  # [N]
        self.drawn: list[float] | None = None  # [N] likewise by the draft; None = by rule
        if draft.probs is not None and draft.drawn is not Drawn.POINT:
            self.drawn = draft.probs.gather(1, draft.tokens[:, None])[:, 0].tolist()

    def rung(self, at: int, weight: float = 1.0) -> "Rung":
        """Row `at` before its first child was tested."""
        return Rung(self, at, weight)

    def law(self, node: int) -> tuple[Tensor | None, float]:
        """What `node` was drawn from, given the siblings before it: [V] weights, and their sum.

        None of a token by rule: all is on it.
        """
        if self.drawn is None or self.draft.probs is None:
            return None, 1.0
        law = self.draft.probs[node]
        siblings = self.shape.children[self.shape.parents[node] + 1]
        rank = siblings.index(node)
        if rank == 0 or self.draft.drawn is not Drawn.DISTINCT:
            return law, 1.0
        before = numbers([self.tokens[sibling] for sibling in siblings[:rank]])
        law = law.index_fill(0, before, 0.0)
        return law, float(law.sum())


class Rung:
    """A row of mass R = left / scale and its weight a, while its children are refused in order."""

    def __init__(self, tree: Tree, at: int, weight: float) -> None:
        self.tree, self.at = tree, at
        self.weight = weight  # before what `_waiting` takes away
        self.left = tree.q[at]  # the law itself, and ours to write to once a child was refused
        self._ours = False
        self.scale = 1 / max(weight, finfo(self.left.dtype).tiny)
        self._law: tuple[int, Tensor | None, float] | None = None  # of the child asked for last
        self._waiting: int | None = None  # refused, and nothing depended on it so far

    def chance(self, node: int) -> float:
        """Of a child, given that those before it were refused: min(1, R(x) / P(x))."""
        self._settle()
        if not self.weight > 0:
            return 0.0
        tree, first = self.tree, node == self.tree.shape.children[self.at][0]
        own = tree.own[node] if first else float(self.left[tree.tokens[node]])
        mass = own / self.scale
        if tree.drawn is None:
            return min(mass, 1.0)
        total = self._law_of(node)[1] if not first else 1.0
        drawn = tree.drawn[node]
        if drawn == 0 or total == 0:  # a token that could not be drawn
            return float(mass > 0 and total > 0)
        return min(mass / drawn * total, 1.0)

    def refuse(self, node: int) -> None:
        """Take a child away: R <- (R - P)+ / (S + 1 - a), a <- S / (S + 1 - a)."""
        self._settle()
        self._waiting = node

    def passes(self, u: float) -> bool:
        """Whether u < a. A refusal never adds to a, so most need not be gone through for it."""
        if not u < self.weight:
            return False
        self._settle()
        return u < self.weight

    def rest(self) -> Tensor:
        """[V] weights of the token after this row: what is left, or the law where nothing is."""
        self._settle()
        return self.left if float(self.left.sum()) > 0 else self.tree.q[self.at]

    def _settle(self) -> None:
        """Refuse the child that waits."""
        node, self._waiting = self._waiting, None
        if node is None or not self.weight > 0:
            return
        before = self.left
        if not self._ours:
            self.left, self._ours = empty_like(before), True
        law, total = self._law_of(node)
        if law is None:
            self.left.copy_(before)[self.tree.tokens[node]] = 0.0
        else:
            away = self.scale / total if total else 0.0
            sub(before, law, alpha=away, out=self.left).clamp_(min=0)
        excess = float(self.left.sum()) / self.scale
        room = excess + (1 - self.weight)
        # Without room the two laws are equal: what is refused there is refused by rounding alone.
        self.weight = excess / room if room > 0 else 1.0
        self.scale *= room if room > 0 else 1.0

    def _law_of(self, node: int) -> tuple[Tensor | None, float]:
        if self._law is None or self._law[0] != node:
            self._law = node, *self.tree.law(node)
        return self._law[1:]
