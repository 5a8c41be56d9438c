"""Stop before a slot whose law is too flat.

transformers' `assistant_confidence_threshold` looks at the probability of the token that was drawn,
and stops after it. Ours looks at the likeliest token of the law, before anything is drawn from it,
so the slot that would be weak is not drafted at all, and the rule stays exact (invariant 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_most, check_share


@dataclass(frozen=True)
class Confidence(Schedule):
    """Draft while the law's greatest probability is `t` or more, up to `most` tokens.

    Host reads: one a drafted token, and one for the slot that is refused.
    """

    t: float = 0.4
    most: int = 20

    def __post_init__(self) -> None:
        check_share("t", self.t)
        check_most(self.most)

    def k(self, history: Sequence[Round]) -> int:
        """The bound."""
        return self.most

    def go_on(self, p: Tensor) -> Tensor:
        """Whether `p` is peaked; a law that is no number goes on, and is reported by the loop."""
        return (p.amax() < self.t).logical_not()
