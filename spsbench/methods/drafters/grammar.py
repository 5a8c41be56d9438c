"""Tokens that a grammar forces: the only ones allowed in their place, kept with probability 1."""

from typing import Self

import torch

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import DrafterContext
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise


class GrammarDrafter(Drafter):
    """A drafter that follows the masks of the constraint while one token is allowed.

    Made for `hybrid:first=grammar,then=model`: where a choice begins, the other drafter goes on.
    """

    drawn = Drawn.POINT

    @classmethod
    def open(cls, context: DrafterContext) -> Self:
        if not context.constrained:
            raise UsageError(
                "`drafter` grammar without a constraint: expected one. Give `json_schema`, "
                "`regex` or `grammar`"
            )
        return cls()

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        constraint = context.constraint
        output = constraint.output(context.tokens)
        tokens: list[int] = []
        while len(tokens) < k:
            token = constraint.only((*output, *tokens))
            if token is None:
                break
            tokens.append(token)
        return Draft(torch.tensor(tokens, dtype=torch.int64), None)
