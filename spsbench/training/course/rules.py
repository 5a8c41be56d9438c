"""How a student is taught, and when that ends."""

from dataclasses import dataclass

from spsbench.loop.sampling import Warp
from spsbench.training.course.precision import FLOAT32
from spsbench.training.losses.laws import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of one course.

    Attributes:
        warped: whether the loss is of laws as they will be used.
        lawless: whether the loss is of the target's tokens, and not of its laws.
        steps: how many; None: what the minutes allow.
        evaluations: looks at acceptance.
        patience: looks without a rise until it ends; 0: never.
        worth: ends where less speed-up is foreseen; 0: never.
        products: the numbers that they are computed in.
    """

    loss: Loss
    warp: Warp
    warped: bool
    lawless: bool = False
    rate: float
    steps: int | None
    minutes: float
    micro_tokens: int
    evaluations: int
    patience: int
    worth: float
    products: str = FLOAT32
