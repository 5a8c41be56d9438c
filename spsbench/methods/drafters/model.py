"""A smaller language model drafts token by token (Chen et al. 2023, Algorithm 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from spsbench.loop.drafter_context import DrafterContext, Weights
from spsbench.loop.sampling import Warp, sample, unsharpened
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
        return cls(context.session())

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.limit = lm.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self.lm.commit(0)
        if self.limit is None or len(prompt) <= self.limit:
            self.lm.append(torch.tensor(prompt[:-1], dtype=torch.int64), keep=0)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Draft; slot i uses DRAFT's uniform i. The first pass also feeds the loop's new tokens."""
        lm = self.lm
        u = noise.uniform(Purpose.DRAFT, k)
        # Drop what was rejected, in rounds without a draft too: later the text would hide it.
        lm.commit(min(lm.length, len(context.tokens) - 1))
        feed, left = torch.tensor(context.tokens[lm.length :]), u
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        while len(left):
            logits = lm.append(feed, keep=1).logits
            rolled = None
            if go_on is always and (roll_out := getattr(lm, "roll_out", None)) is not None:
                rolled = rolled_out(partial(roll_out, logits), logits, context.warp, left)
            if rolled is None:
                law = context.warp(logits)  # [1, V]
                if not continues(go_on, context.warp, logits[0], law[0]):
                    break
                rolled = RolledOut(sample(law, left[:1]), law, 0)
            tokens.append(rolled.tokens)
            laws.append(rolled.laws)
            if rolled.wrong:
                lm.commit(lm.length - rolled.wrong)
            feed, left = rolled.tokens[-1:], left[len(rolled.tokens) :]
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.cat(tokens), torch.cat(laws))

    def along(
        self, tokens: Sequence[int], begin: int, warp: Callable[[Tensor], Tensor]
    ) -> Along | None:
        lm = self.lm
        lm.commit(min(lm.length, begin - 1))
        fed = torch.tensor(tokens[lm.length : -1], dtype=torch.int64)
        logits = lm.append(fed, keep=len(tokens) - begin).logits
        laws = warp(logits)
        return Along(laws, unsharpened(warp, logits, laws))


class RolledOut(NamedTuple):
    """The part of a roll-out that holds."""

    tokens: Tensor  # [n]
    laws: Tensor  # [n, V], from which they were drawn
    wrong: int  # passes at the end that are to be taken back


def rolled_out(
    roll_out: Callable[[Tensor, Warp], tuple[Tensor | None, Tensor] | None],
    logits: Tensor,
    warp: Callable[[Tensor], Tensor],
    u: Tensor,
    names: Tensor | None = None,
) -> RolledOut | None:
    """Draw up to n tokens by `u` [n], one at least; `logits` [1, V] are of the newest pass.

    What draws and feeds several tokens in one call draws them up to rounding. They are drawn once
    more here, from the laws, and passes over any other token are to be taken back.

    Args:
        roll_out: maps uniforms [n - 1] and the warp to tokens, None if it matters not which,
            and the logits after each.
        names: [V] tokens that the columns of logits are; None: their numbers.
    """
    if len(u) < 2 or not isinstance(warp, Warp):
        return None
    roll = roll_out(u[:-1], warp)
    if roll is None:
        return None
    laws = warp(torch.cat([logits, roll[1]]))  # [n, V]
    drawn = sample(laws, u)
    tokens = drawn if names is None else names[drawn]
    same = tokens[:-1] if roll[0] is None else roll[0]
    right = 1 + int((same == tokens[:-1]).long().cumprod(0).sum())
    return RolledOut(tokens[:right], laws[:right], len(u) - right)


@dataclass(frozen=True)
class NoDrafter(Drafter):
    """A drafter that drafts nothing: the target makes every token."""

    drawn = Drawn.IID  # vacuously: every verifier may follow

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Do nothing."""

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        return Draft(torch.empty(0, dtype=torch.int64), None)
