"""A draft model that is fed a tree, a depth a pass, and afterwards keeps what became text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.types import LM, Context, Scores


class Frontier:
    """The cache of a draft model while a tree grows in it.

    Only nodes with children are fed, so its rows are not the nodes: it remembers whose each is.
    """

    def __init__(self, lm: LM) -> None:
        self.lm, self.limit = lm, lm.limit
        self._rows: dict[int, int] = {}  # node of the last draft -> its place among those fed
        self._parents: list[int] = []  # of each fed node, as such places

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Prefill with all but the newest token, unless it does not fit."""
        self._forget()
        self.lm.commit(0)
        if self.lm.limit is None or len(prompt) <= self.lm.limit:
            self.lm.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)

    def settle(self, context: Context) -> None:
        """Keep of the last tree what is in the text now, and drop what was rejected.

        To be called in rounds without a draft too: later the text would hide it.
        """
        lm, kept = self.lm, [] if context.last is None else list(context.last.kept)
        if self._parents:
            path = [self._rows[node] for node in kept if node in self._rows]  # the last may be new
            lm.commit(lm.length - len(self._parents), path)
            self._forget()
        lm.commit(min(lm.length, len(context.tokens) - 1))

    def room(self, context: Context) -> int | None:
        """Nodes that may be fed after the text; None = any number."""
        return None if self.lm.limit is None else self.lm.limit - len(context.tokens)

    def depth(self, context: Context, k: int) -> int:
        """How deep the next draft may be where K is `k`; asked before it is drawn."""
        return k

    def root(self, context: Context) -> Tensor:
        """[1, V] logits after the text; feeds what the loop has added."""
        return self.lm.append(torch.tensor(context.tokens[self.lm.length :]), keep=1).logits

    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[n, V] logits after each of some nodes of one depth, in one pass.

        Args:
            tokens: [n] theirs.
            nodes: their numbers in the draft.
            parents: the numbers of their parents, -1 = the context.
        """
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)
        above = torch.tensor(self._parents)
        return self.lm.append(tokens, keep=len(nodes), parents=above).logits

    def renumber(self, order: Sequence[int]) -> None:
        """The draft is handed over as the nodes `order`, in that order."""
        place = {node: number for number, node in enumerate(order)}
        self._rows = {place[node]: row for node, row in self._rows.items() if node in place}

    def _forget(self) -> None:
        self._rows, self._parents = {}, []


def frontier_over(lm: LM | Frontier) -> Frontier:
    """Of a draft model; what is one already, as that of a head, stays."""
    return lm if isinstance(lm, Frontier) else Frontier(lm)
