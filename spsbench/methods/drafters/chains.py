"""Several independent chains of a draft model as one trie (SpecTr: Sun et al. 2023, 2310.15141)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import confidence_probs, sample, send
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose
from spsbench.methods.drafters.frontier import Arguments, Frontier, FrontierDrafter
from spsbench.spec import K_MAX

MAX_CHAINS = 64


@dataclass(frozen=True)
class Chains(Arguments):
    """A drafter of `n` chains of K tokens, drawn independently from one distribution.

    Args:
        n: chains.
        share: merge the common prefixes of chains into a trie: the draft model reads each prefix
            once. The shape of a trie depends on the drawn tokens, so its nodes have no probs and
            only a verifier that needs none may follow.
    """

    tree: ClassVar[bool] = True
    ranges: ClassVar = {"n": (1, MAX_CHAINS)}

    n: int = 3
    share: bool = False

    @property
    def drawn(self) -> Drawn:
        return Drawn.POINT if self.share else Drawn.IID

    def over(self, frontier: Frontier) -> Drafter:
        return ChainsDrafter(frontier, self)


class ChainsDrafter(FrontierDrafter):
    """A drafter of chains, each of which is separate, so the shape depends on no token.

    Where only one token is possible, one chain continues. Slot d * n + c of DRAFT's uniforms is
    token d of chain c.
    """

    tree = True

    def __init__(self, frontier: Frontier, chains: Chains) -> None:
        super().__init__(frontier)
        self.n, self.share, self.drawn = chains.n, chains.share, chains.drawn
        self.shape = tuple(max(-1, slot - self.n) for slot in range(self.n * K_MAX))

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draw up to `k` tokens for each chain, one pass a depth, within `context.nodes`.

        Nodes come depth by depth, with probs [N, V]. Token d of chain c is drawn by DRAFT's uniform
        d * n + c. Chains end where `go_on` refuses their next slot; where one token is possible,
        one chain of a node goes on. With `share` equal tokens below a node are one node, fed once,
        and the draft has no probs.
        """
        frontier, n = self._frontier, self.n
        frontier.settle(context)
        most = context.fit(n * k)
        if most <= 0:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        u = noise.uniform(Purpose.DRAFT, n * k)
        tokens, parents = list[int](), list[int]()
        draft_probs: list[Tensor] = []
        at, ends, logits = [-1], {-1: list(range(n))}, frontier.root(context)  # chains at each node
        for depth in range(k):
            probs = context.warp(logits)  # [R, V]
            sure = confidence_probs(context.warp, logits, probs)
            going = self._going(probs, sure, at, ends, go_on)[: most - len(tokens)]
            if not going:
                break
            rows = send(torch.tensor([r for r, _ in going]), probs.device)
            slots = send(torch.tensor([depth * n + chain for _, chain in going]), u.device)
            drawn = sample(probs[rows], u[slots])
            draft_probs.append(probs[rows])
            first: dict[tuple[int, int, int], int] = {}  # parent and token -> the first such node
            ahead: dict[int, list[int]] = {}
            for (r, chain), token in zip(going, drawn.tolist(), strict=True):
                alike = at[r], token, 0 if self.share else chain
                node = first.setdefault(alike, len(tokens))
                ahead.setdefault(node, []).append(chain)
                if node == len(tokens):
                    tokens.append(token)
                    parents.append(at[r])
            at = frontier.fitting([*ahead])
            if depth + 1 == k or not at or len(tokens) >= most:
                break
            ends = ahead
            fed = torch.tensor([tokens[node] for node in at])
            logits = frontier.feed(fed, at, [parents[node] for node in at])
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        stacked = None if self.share else torch.cat(draft_probs)
        return Draft(torch.tensor(tokens), stacked, torch.tensor(parents))

    def _going(
        self, probs: Tensor, sure: Tensor, at: list[int], ends: dict[int, list[int]], go_on: GoOn
    ) -> list[tuple[int, int]]:
        """Return (row, chain) of chains that go on; of a row with one possible token only one.

        Rows of `probs` and `sure`, those that `go_on` is asked about, are of the nodes `at`; `ends`
        has the chains at a node.
        """
        possible = (probs > 0).sum(-1).tolist()
        return [
            (r, chain)
            for r, node in enumerate(at)
            if go_on(sure[r])
            for chain in (ends[node] if possible[r] > 1 else ends[node][:1])
        ]
