"""What a loss is given, and what it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """The drafter's law p at N places, over the Vd tokens that it knows, and what is there.

    Attributes:
        log_p: [N, Vd].
        tokens: [N] the column of the token that the target wrote; -1 where p does not know it.
    """

    log_p: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws(Foretold):
    """With the target's law q.

    Where a head has a vocabulary of its own, q is left as it is: its rows add up to less than 1,
    and p is 0 on the rest.

    Attributes:
        q: [N, Vd], no gradient.
        log_q: [N, Vd], -inf where q is 0.
    """

    q: Tensor
    log_q: Tensor

    @property
    def overlap(self) -> Tensor:
        """[N] sum of min(p, q): the chance that a token drawn from p is kept."""
        return overlap(self.log_p.exp(), self.q)


Loss = Callable[[Any], Tensor]
"""Of `Laws`, or of what is `Foretold`: [N] what is lowered, place by place."""


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """[..., V] laws -> [...] sum of min(p, q)."""
    return p.minimum(q).sum(-1)


def expected(law: Tensor, values: Tensor) -> Tensor:
    """[N, V] weights and values -> [N] their sum of products, where 0 times infinity is 0."""
    return (law * values.masked_fill(law == 0, 0.0)).sum(-1)
