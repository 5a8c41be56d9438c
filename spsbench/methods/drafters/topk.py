"""Best-first trees by the draft model's confidence (EAGLE-2: Li et al. 2024, arXiv 2406.16858)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spsbench.loop.sampling import confidence_probs
from spsbench.loop.tree import MAX_NODES
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, always
from spsbench.methods.drafters.frontier import Arguments, Frontier, FrontierDrafter


class Node(NamedTuple):
    """A candidate token, with its path probability by the draft model's softmax."""

    score: float  # log of the probability of the path that ends in it
    token: int
    parent: int  # -1 = the context


class TopkDrafter(FrontierDrafter):
    """A best-first tree drafter: expand the best `width` nodes of a depth, keep the best of all.

    Path probabilities are the draft model's at temperature 1, whatever the warp is: at 0 the warped
    row has one token only. The draft is deterministic, so it has no probs, and only a verifier that
    needs none may follow it (section 4 of the paper; sampled nodes that were selected by their
    value would have none either).
    """

    drawn = Drawn.POINT
    tree = True

    def __init__(self, frontier: Frontier, width: int, depth: int, nodes: int) -> None:
        super().__init__(frontier, narrow=True)
        self.width, self.depth, self.nodes = width, depth, nodes

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Expand depth by depth; return the best `nodes`, likeliest first, `context.nodes` at most.

        Each depth feeds its best `width` nodes, if they may be among those; below one that `go_on`
        refuses nothing grows. There are no probs.
        """
        frontier = self._frontier
        frontier.settle(context)
        k = frontier.depth(context, min(k, self.depth or k))
        most = context.fit(self.nodes)
        if k == 0 or most <= 0:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        seen: list[Node] = []
        at, logits = [-1], frontier.root(context)
        for depth in range(k):
            going: Sequence[bool | Tensor] = [True] * len(at)
            if go_on is not always:
                sure = confidence_probs(context.warp, logits, context.warp(logits))
                going = [go_on(sure[r]) for r in range(len(at))]
            first = len(seen)
            for r, children in enumerate(likeliest(logits, self.width, self.known_ids)):
                above = seen[at[r]].score if at[r] >= 0 else 0.0
                if going[r]:
                    seen += [Node(above + log, token, at[r]) for log, token in children]
            # A node among the best `most` so far may be kept; a worse one cannot, nor can what
            # would be below it.
            worth = set(best(seen, most))
            ranked = best(seen[first:], self.width, first)
            at = frontier.fitting([i for i in ranked if i in worth])
            if depth + 1 == k or not at:
                break
            fed = torch.tensor([seen[i].token for i in at])
            logits = frontier.feed(fed, at, [seen[i].parent for i in at])
        order = best(seen, most)
        frontier.renumber(order)
        place = {-1: -1, **{node: number for number, node in enumerate(order)}}
        if not order:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        parents = torch.tensor([place[seen[i].parent] for i in order])
        return Draft(torch.tensor([seen[i].token for i in order]), None, parents)


@dataclass(frozen=True)
class BestFirst(Arguments):
    """A best-first tree drafter over a draft model; see `TopkDrafter`.

    Args:
        width: nodes expanded at each depth, and children of each.
        depth: depth of the tree at most; 0 = as deep as K.
        nodes: nodes kept in the end.
    """

    drawn, tree = Drawn.POINT, True
    ranges: ClassVar = {"width": (1, MAX_NODES), "depth": (0, MAX_NODES), "nodes": (1, MAX_NODES)}

    width: int = 8
    depth: int = 0
    nodes: int = 32

    def over(self, frontier: Frontier) -> Drafter:
        return TopkDrafter(frontier, self.width, self.depth, self.nodes)


def likeliest(
    logits: Tensor, width: int, ids: Tensor | None = None
) -> list[list[tuple[float, int]]]:
    """Return (log probability, token) of the `width` likeliest of each row, in descending order.

    One host read. `logits` are [R, V], or [R, n] of the n tokens `ids` alone (None = all).
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    top = x.topk(min(width, x.shape[-1]))
    tokens = top.indices if ids is None else ids[top.indices]
    logs = (top.values - x.logsumexp(-1, keepdim=True)).double()
    both: list[list[list[float]]] = torch.stack([logs, tokens.double()], -1).cpu().tolist()
    return [[(log, int(token)) for log, token in row] for row in both]


def best(nodes: Sequence[Node], most: int, first: int = 0) -> list[int]:
    """Return the numbers, from `first` on, of the `most` likeliest nodes; of equals the earlier."""
    order = sorted(range(len(nodes)), key=lambda i: -nodes[i].score)
    return [first + i for i in order[:most]]
