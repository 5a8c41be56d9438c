"""A draft model's cache under a growing tree: one pass a depth, then rollback to the kept path."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.types import LM, Context, Scores


class Frontier:
    """The cache of a draft model while a tree grows in it.

    Only nodes with children are fed, so cache rows and node numbers differ: the frontier maps them.
    """

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit
        self._rows: dict[int, int] = {}  # node of the last draft -> its place among those fed
        self._parents: list[int] = []  # of each fed node, as such places

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._forget()
        self.lm.commit(0)
        if self.lm.limit is None or len(prompt) <= self.lm.limit:
            self.lm.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)

    def settle(self, context: Context) -> None:
        """Keep the part of the last tree that became text, and drop the rejected rows.

        Call it in rounds without a draft too: one round later the text no longer shows the tree.
        """
        lm, kept = self.lm, [] if context.last is None else list(context.last.kept)
        if self._parents:
            path = [self._rows[node] for node in kept if node in self._rows]  # the last may be new
            lm.commit(lm.length - len(self._parents), path)
            self._forget()
        lm.commit(min(lm.length, len(context.tokens) - 1))

    def room(self, context: Context) -> int | None:
        """Return how many nodes may be fed after the text; None = any number."""
        return None if self.lm.limit is None else self.lm.limit - len(context.tokens)

    def depth(self, context: Context, k: int) -> int:
        """Return how deep the next draft may be where K is `k`; called before it is drawn."""
        return k

    def root(self, context: Context) -> Tensor:
        """Feed the tokens that the loop has added, and return the [1, V] logits after the text."""
        return self.lm.append(torch.tensor(context.tokens[self.lm.length :]), keep=1).logits

    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return [n, V] logits after each of some nodes of one depth, in one pass.

        Args:
            tokens: [n] of the nodes.
            nodes: their numbers in the draft.
            parents: the numbers of their parents, -1 = the context.
        """
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)
        above = torch.tensor(self._parents)
        return self.lm.append(tokens, keep=len(nodes), parents=above).logits

    def renumber(self, order: Sequence[int]) -> None:
        """Renumber the nodes: the draft is returned as `order`, in that order."""
        place = {node: number for number, node in enumerate(order)}
        self._rows = {place[node]: row for node, row in self._rows.items() if node in place}

    def _forget(self) -> None:
        self._rows, self._parents = {}, []


def frontier_over(lm: LM | Frontier) -> Frontier:
    """Wrap a draft model in a `Frontier`; return a frontier unchanged."""
    return lm if isinstance(lm, Frontier) else Frontier(lm)
