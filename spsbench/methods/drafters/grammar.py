"""Tokens that a grammar forces: the only ones allowed in their place, kept with probability 1."""

from typing import Any, Self

import torch

from spsbench.errors import UsageError
from spsbench.loop.drafter_context import DrafterContext
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise


class GrammarDrafter(Drafter):
    """A drafter that follows the masks of the constraint while one token is allowed.

    Made for `hybrid:first=grammar,then=model`: where a choice begins, the other drafter goes on.

    Args:
        constraint: `loop.constraint.Constraint` of the generation.
    """

    drawn = Drawn.POINT

    @classmethod
    def open(cls, context: DrafterContext) -> Self:
        """Open the drafter over the constraint of the generation."""
        if context.constraint is None:
            raise UsageError(
                "`drafter` grammar without a constraint: expected one. Give `json_schema`, "
                "`regex` or `grammar`"
            )
        return cls(context.constraint)

    def __init__(self, constraint: Any) -> None:
        self._constraint = constraint

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        output = tuple(context.tokens[self._constraint.start :])
        tokens: list[int] = []
        while len(tokens) < k:
            token = self._constraint.only((*output, *tokens))
            if token is None:
                break
            tokens.append(token)
        return Draft(torch.tensor(tokens, dtype=torch.int64), None)
