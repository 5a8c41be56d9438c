"""Token recycling: drafts from the target's earlier candidates for each token (arXiv 2408.08696).

Each pass of the target also scores rejected tokens, and its likeliest candidates after each are
usually discarded. Here they are kept, one row a token, newer rows replacing older ones; the draft
follows these rows from the newest token on.
"""

from collections import ChainMap
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import torch

from spsbench.loop.tree import MAX_NODES
from spsbench.loop.types import Context, Draft, GoOn, Noise, Scores, Step
from spsbench.methods.drafters.ngram import LookUpDrafter
from spsbench.methods.drafters.text_index import chain, tree

PRIOR = (0.4, 0.14, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)  # hits by rank, before any were counted
WEIGHT = 16  # counted tokens that weigh as much as the prior
MAX_PROMPTS = 256  # prompts whose rows are kept


class EarlierRows:
    """The rows of earlier generations, by prompt."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, ...], dict[int, list[int]]] = {}

    def begin(self, prompt: Sequence[int]) -> ChainMap[int, list[int]]:
        """Return the rows (token -> candidates) of a new text: its own, over other prompts'.

        What is written to them is kept for this prompt. Rows kept for it before are dropped, and of
        too many prompts the oldest one's.
        """
        key = tuple(prompt)
        self._of.pop(key, None)
        before: dict[int, list[int]] = {}
        for rows in self._of.values():
            before |= rows
        self._of[key] = {}
        if len(self._of) > MAX_PROMPTS:
            del self._of[next(iter(self._of))]
        return ChainMap(self._of[key], before)


class RecyclingDrafter(LookUpDrafter):
    """A drafter along an adjacency matrix of the target's own candidates.

    Off the CPU a round reads the device once more than the loop does: the candidates are looked at
    on the host, where a draft ends at the first token that has none.

    Args:
        width: candidates kept of a token.
        nodes: nodes of a tree; 0 = a chain. Which ranks a tree branches into follows from how often
            each was right in this text.
        shared: begin with the rows of generations for other prompts.
    """

    text_alone = False
    ranges: ClassVar = {"width": (1, MAX_NODES), "nodes": (0, MAX_NODES)}
    earlier: EarlierRows | None
    remembers = EarlierRows

    def __init__(self, width: int = 8, nodes: int = 0, shared: bool = False) -> None:
        self._width, self._nodes, self.tree = width, nodes, nodes > 0
        self.shared = shared
        self._rows: ChainMap[int, list[int]] = ChainMap()  # token -> candidates, likeliest first
        self._hits: list[int] = []  # by rank, and of tokens that were looked up at all
        self._looked_up = 0
        self._drafted_at = 0  # tokens of the text when the last draft was made

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._rows = ChainMap() if self.earlier is None else self.earlier.begin(prompt)
        self._hits = [0] * self._width
        self._looked_up, self._drafted_at = 0, len(prompt)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Learn from the last pass; draft along the rows a chain, or a tree, up to `k` deep."""
        x = context.tokens
        if context.last is not None:
            self._count_hits(x)
            self._learn(context.last, x)
        self._drafted_at = len(x)
        shares = self._shares()

        def followers(token: int) -> list[tuple[float, int, int]]:
            after = self._rows.get(token, ())
            return [(share, t, t) for share, t in zip(shares, after, strict=False)]

        if self.tree:
            return tree(x[-1], followers, k, context.fit(self._nodes)).draft()
        return chain(x[-1], followers, k).draft()

    def _learn(self, last: Step, x: Sequence[int]) -> None:
        """Store the candidates after each token of the last pass; of equal tokens a kept one's."""
        logits, drafted = last.scores.logits, last.draft.tokens
        rows = logits.topk(min(self._width, logits.shape[-1])).indices  # [N + 1, width]
        n, width = len(drafted), rows.shape[-1]
        host = torch.cat([drafted, rows.flatten()]).tolist()
        tokens, candidates = host[:n], [host[i : i + width] for i in range(n, len(host), width)]
        for node in (*(i for i in range(n) if i not in last.kept), *last.kept):
            self._rows[tokens[node]] = candidates[node + 1]
        self._rows[x[self._drafted_at - 1]] = candidates[0]

    def _count_hits(self, x: Sequence[int]) -> None:
        """Count the new tokens whose predecessor had a row, and the ranks at which it had them."""
        for before, token in zip(x[self._drafted_at - 1 :], x[self._drafted_at :], strict=False):
            if (row := self._rows.get(before)) is not None:
                self._looked_up += 1
                if token in row:
                    self._hits[row.index(token)] += 1

    def _shares(self) -> list[float]:
        """Return the probability of each rank, in descending order."""
        priors = (*PRIOR, *[PRIOR[-1]] * self._width)
        ranks = zip(self._hits, priors, strict=False)
        total = self._looked_up + WEIGHT
        return list(accumulate(((hits + WEIGHT * prior) / total for hits, prior in ranks), min))
