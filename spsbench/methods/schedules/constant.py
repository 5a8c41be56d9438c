"""The paper's schedule: the same K in every round (Chen et al. 2023, Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.loop.types import Round, Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """K tokens a round, 0 is auto-regressive sampling; of a tree K is the depth.

    `most` bounds the nodes of a tree; None = as many as its drafter likes.
    """

    lookahead: int = 4
    most: int | None = None

    def k(self, history: Sequence[Round]) -> int:
        """The same K whatever happened."""
        return self.lookahead

    def nodes(self, history: Sequence[Round]) -> int | None:
        """The same number whatever happened."""
        return self.most
