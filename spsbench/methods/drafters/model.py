"""A smaller language model drafts token by token (Chen et al. 2023, Algorithm 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from spsbench.loop.drafter_context import DrafterContext, Weights
from spsbench.loop.sampling import Warp, sample, send, unsharpened
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
    Scores,
    always,
    continues,
)


class ModelDrafter(Drafter):
    """A drafter that samples from `lm` under the target's warp and keeps the laws."""

    drawn = Drawn.IID
    weights = Weights.MODEL

    @classmethod
    def open(cls, context: DrafterContext) -> Self:
        """Open the drafter over a session with the draft model."""
        return cls(context.session())

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.limit = lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Prefill the draft model with all but the newest token, unless the prompt is too long."""
        self.lm.commit(0)
        if self.limit is None or len(prompt) <= self.limit:
            self.lm.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft; slot i uses DRAFT's uniform i. The first pass also feeds the loop's new tokens."""
        lm = self.lm
        u = noise.uniform(Purpose.DRAFT, k)
        # Drop what was rejected, in rounds without a draft too: later the text would hide it.
        lm.commit(min(lm.length, len(context.tokens) - 1))
        feed, tokens = torch.tensor(context.tokens[lm.length :]), torch.empty(0, dtype=torch.int64)
        laws: list[Tensor] = []
        while len(tokens) < k:
            logits, left = lm.append(feed, keep=1).logits, u[len(tokens) :]
            if go_on is always:
                law, drawn = self._rolled_out(logits, context.warp, left)
            else:
                law = context.warp(logits)  # [1, V]
                if not continues(go_on, context.warp, logits[0], law[0]):
                    break
                drawn = sample(law, left[:1])
            tokens, feed = torch.cat([send(tokens, drawn.device), drawn]), drawn[-1:]
            laws.append(law)
        return Draft(tokens, torch.cat(laws) if laws else None)

    def _rolled_out(
        self, logits: Tensor, warp: Callable[[Tensor], Tensor], u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw up to n tokens by `u` [n], one at least; `logits` [1, V] are of the newest pass.

        The session may feed several tokens in one call, which it draws up to rounding. Here they
        are drawn once more, from the laws; passes over another token are taken back.
        """
        roll_out = getattr(self.lm, "roll_out", None)
        fed, ahead = None, logits[:0]
        if roll_out is not None and isinstance(warp, Warp) and warp.plain and len(u) > 1:
            fed, ahead = roll_out(logits, u[:-1], warp.temperature) or (fed, ahead)
        laws = warp(torch.cat([logits, ahead]))
        drawn = sample(laws, u[: len(laws)])
        if fed is None:
            return laws, drawn
        right = 1 + int((fed == drawn[:-1]).long().cumprod(0).sum())
        self.lm.commit(self.lm.length + right - len(u))
        return laws[:right], drawn[:right]

    def along(
        self, tokens: Sequence[int], begin: int, warp: Callable[[Tensor], Tensor]
    ) -> Along | None:
        """Return the laws along a text, by one pass over the tokens that are not cached."""
        lm = self.lm
        lm.commit(min(lm.length, begin - 1))
        fed = torch.tensor(tokens[lm.length : -1], dtype=torch.int64)
        logits = lm.append(fed, keep=len(tokens) - begin).logits
        laws = warp(logits)
        return Along(laws, unsharpened(warp, logits, laws))


@dataclass(frozen=True)
class NoDrafter(Drafter):
    """A drafter that drafts nothing: the target makes every token."""

    drawn = Drawn.IID  # vacuously: every verifier may follow

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Do nothing."""

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return an empty draft."""
        return Draft(torch.empty(0, dtype=torch.int64), None)
