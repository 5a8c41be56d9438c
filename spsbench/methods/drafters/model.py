"""A smaller language model drafts token by token (Chen et al. 2023, Algorithm 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.drafter_context import Weights
from spsbench.loop.sampling import Warp, confidence_probs, sample
from spsbench.loop.types import (
    LM,
    Along,
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Noise,
    Purpose,
    always,
    continues,
)
from spsbench.methods.drafters.frontier import ChainFrontier, Frontier, FrontierDrafter


class ChainDrafter(FrontierDrafter):
    """A drafter of chains over a frontier: of sampled tokens, or of the likeliest ones.

    Slot i uses DRAFT's uniform i.
    """

    def __init__(self, frontier: Frontier, sampled: bool = True) -> None:
        super().__init__(frontier, narrow=True)
        self.drawn = Drawn.IID if sampled else Drawn.POINT

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft up to `k` tokens, until `go_on` refuses the next slot's probs; K = 0: none.

        Sampled ones come with probs [N, V], slot i by DRAFT's uniform i; the likeliest without.
        """
        frontier, ids = self._frontier, self.known_ids
        if k == 0:
            frontier.defer(context)
            return Draft(torch.empty(0, dtype=torch.int64), None)
        frontier.settle(context)
        u = noise.uniform(Purpose.DRAFT, k) if self.drawn is Drawn.IID else None
        tokens: list[Tensor] = []
        draft_probs: list[Tensor] = []
        i, depth = 0, frontier.depth(context, k)
        while i < depth:
            logits = (
                frontier.feed(tokens[-1][-1:], [i - 1], [i - 2])
                if tokens
                else frontier.root(context)
            )
            rolled = None
            if u is not None and go_on is always:
                rolled = rolled_out(frontier, logits, context.warp, u[i:depth], i)
            if rolled is None:
                probs = context.warp(logits)  # [1, V]
                if not continues(go_on, context.warp, logits[0], probs[0]):
                    break
                drawn = logits.argmax(-1) if u is None else sample(probs, u[i : i + 1])
                rolled = drawn if ids is None else ids[drawn], probs
            tokens.append(rolled[0])
            draft_probs.append(rolled[1])
            i += len(rolled[0])
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        spread = None if u is None else frontier.spread(torch.cat(draft_probs), 0.0)
        return Draft(torch.cat(tokens), spread)

    def follow(self, context: Context, tokens: Tensor) -> Along | None:
        """Return the probs of each slot if `tokens` [N] are drawn; None: nothing is drafted."""
        frontier, warp = self._frontier, context.warp
        frontier.settle(context)
        depth = frontier.depth(context, len(tokens))
        if depth == 0:
            return None
        rows = [frontier.root(context)]
        for i in range(1, depth):
            rows.append(frontier.feed(tokens[i - 1 : i], [i - 1], [i - 2]))
        logits = torch.cat(rows)
        probs = warp(logits)
        sure = confidence_probs(warp, logits, probs)
        return Along(frontier.spread(probs, 0.0), frontier.spread(sure, 0.0))


def rolled_out(
    frontier: Frontier, logits: Tensor, warp: Callable[[Tensor], Tensor], u: Tensor, first: int
) -> tuple[Tensor, Tensor] | None:
    """Draw up to n tokens by `u` [n], one at least; `logits` [1, V] are of the newest pass.

    What draws and feeds several tokens in one call draws them up to rounding. They are drawn once
    more here, from their probs, and passes over any other token are taken back. `first` is the
    number of the first of these nodes. Returns the tokens [m] and the probs [m, V] they were drawn
    from; None: nothing was fed, as for n = 1 or a warp of another class than `Warp`.
    """
    if len(u) < 2 or not isinstance(warp, Warp):
        return None
    if (roll := frontier.roll_out(logits, u[:-1], warp, first)) is None:
        return None
    probs = warp(torch.cat([logits, roll[1]]))  # [n, V]
    drawn = sample(probs, u)
    tokens = drawn if frontier.known_ids is None else frontier.known_ids[drawn]
    if roll[0] is None:
        return tokens, probs
    right = 1 + int((roll[0] == tokens[:-1]).long().cumprod(0).sum())
    if right < len(u):
        frontier.drop_newest(len(u) - right)
    return tokens[:right], probs[:right]


class ModelDrafter(ChainDrafter):
    """A drafter that samples from `lm` under the target's warp and keeps its probs."""

    drawn = Drawn.IID
    weights = Weights.MODEL

    def __init__(self, lm: LM) -> None:
        super().__init__(ChainFrontier(lm))
        self.lm = lm

    def along(
        self, tokens: Sequence[int], begin: int, warp: Callable[[Tensor], Tensor]
    ) -> Along | None:
        """Return probs of `tokens[begin:]`, never None; feed all not cached, less the last one."""
        lm = self.lm
        lm.commit(min(lm.length, begin - 1))
        fed = torch.tensor(tokens[lm.length : -1], dtype=torch.int64)
        logits = lm.append(fed, keep=len(tokens) - begin).logits
        probs = warp(logits)
        return Along(probs, confidence_probs(warp, logits, probs))


@dataclass(frozen=True)
class NoDrafter(Drafter):
    """A drafter that drafts nothing: the target makes every token."""

    drawn = Drawn.IID  # vacuously: every verifier may follow

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        return Draft(torch.empty(0, dtype=torch.int64), None)
