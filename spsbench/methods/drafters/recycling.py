"""Token recycling: what the target once thought likely after a token (arXiv 2408.08696).

Each pass of the target scores the drafted tokens too, kept or not, and its likeliest candidates
after each of them are usually thrown away. Here they are kept, one row a token, the newest in place
of older ones; the draft follows these rows from the newest token on.
"""

from collections.abc import Sequence

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Plan, Scores, Step
from spsbench.methods.lookup.growth import Followers, chain, tree, within

PRIOR = (0.4, 0.14, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)  # hits by rank, before any were counted
WEIGHT = 16  # counted tokens that weigh as much as the prior


class RecyclingDrafter(Drafter):
    """Drafts along an adjacency matrix of the target's own candidates.

    Off the CPU a round reads the device once more than the loop does: the candidates are looked at
    on the host, where a draft ends at the first token that has none.

    Args:
        width: candidates kept of a token.
        nodes: of a tree; 0 = a chain. Which ranks a tree branches into follows from how often
            each was right in this text.
    """

    drawn = Drawn.POINT

    @classmethod
    def plan(cls, width: int = 8, nodes: int = 0) -> Plan:
        """A tree where nodes are asked for."""
        return Plan(Drawn.POINT, tree=cls(width, nodes).tree)

    def __init__(self, width: int = 8, nodes: int = 0) -> None:
        if width < 1:
            raise ValueError(f"width is {width}: expected 1 or more")
        if nodes < 0:
            raise ValueError(f"nodes is {nodes}: expected 0 (a chain) or more")
        self._width, self._nodes, self.tree = width, nodes, nodes > 0
        self._rows: dict[int, list[int]] = {}  # token -> its candidates, the likeliest first
        self._hits: list[int] = []  # by rank, and of tokens that were looked up at all
        self._looked_up = 0
        self._known = 0  # tokens of the text when the last draft was made

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Forget the last text; a prefill has no logits to learn from."""
        self._rows, self._hits = {}, [0] * self._width
        self._looked_up, self._known = 0, len(prompt)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """At most `k` tokens deep; it ends at tokens that the target has not yet scored."""
        x = context.tokens
        if context.last is not None:
            self._count_hits(x)
            self._learn(context.last, x)
        self._known = len(x)
        shares = self._shares()

        def followers(token: int) -> list[tuple[float, int, int]]:
            after = self._rows.get(token, ())
            return [(share, t, t) for share, t in zip(shares, after, strict=False)]

        return self._grown(x[-1], followers, k, context.nodes)

    def _grown(self, newest: int, followers: Followers[int], k: int, fitting: int | None) -> Draft:
        if self.tree:
            return tree(newest, followers, k, within(self._nodes, fitting)).draft()
        return chain(newest, followers, k).draft()

    def _learn(self, last: Step, x: Sequence[int]) -> None:
        """Keep the candidates after each token of the last pass, those of kept tokens at last."""
        rows = last.scores.logits.topk(min(self._width, last.scores.logits.shape[-1])).indices
        drafted, n = last.draft.tokens, len(last.draft.tokens)
        parents = last.draft.parents
        shape = drafted.new_empty(0) if parents is None else parents
        host = torch.cat([drafted, shape, rows.flatten()]).tolist()
        tokens, above = host[:n], host[n : n + len(shape)] or list(range(-1, n - 1))
        found = torch.tensor(host[n + len(shape) :]).view(n + 1, -1).tolist()
        kept = followed(tokens, above, x[self._known :])
        for node in (*(i for i in range(n) if i not in kept), *kept):
            self._rows[tokens[node]] = found[node + 1]
        self._rows[x[self._known - 1]] = found[0]

    def _count_hits(self, x: Sequence[int]) -> None:
        """At which rank the new tokens stood in the rows as they were."""
        for before, token in zip(x[self._known - 1 :], x[self._known :], strict=False):
            row = self._rows.get(before)
            if row is not None:
                self._looked_up += 1
                if token in row:
                    self._hits[row.index(token)] += 1

    def _shares(self) -> list[float]:
        """The chance of each rank, descending as the candidates do."""
        shares: list[float] = []
        for rank, hits in enumerate(self._hits):
            prior = PRIOR[min(rank, len(PRIOR) - 1)]
            share = (hits + WEIGHT * prior) / (self._looked_up + WEIGHT)
            shares.append(min(share, shares[-1] if shares else 1.0))
        return shares


def followed(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """The nodes along which `text` goes from the root."""
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        children.setdefault((parent, token), node)
    path: list[int] = []
    here = -1
    for token in text:
        if (here, token) not in children:
            break
        here = children[here, token]
        path.append(here)
    return path
