"""What acceptance is worth on this machine, and what it may still become."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spsbench.planning.forecast.costs import Costs
from spsbench.training.course.watch import Seen

FEWEST = 5  # looks before a curve is drawn through them
BEGINNING = 1 / 3  # share of the steps in which a curve says nothing of the end
CONTEXT = 256  # tokens cached, at which a round is priced


class Gain(NamedTuple):
    """The best K, and what it gains."""

    speedup: float
    k: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Rounds of a drafter on this machine."""

    costs: Costs
    arm: str

    def best(self, reach: Sequence[float]) -> Gain:
        """The K at which the predicted speed-up is highest, of those that `reach` is known for."""
        context = min(CONTEXT, self.costs.passes.contexts[-1])
        found = [
            Gain(
                float(self.costs.speed_up(self.arm, k, 1.0 + sum(reach[:k]), context).value),
                k,
            )
            for k in range(1, len(reach) + 1)
        ]
        return max(found, key=lambda gain: gain.speedup)


def foreseen(steps: Sequence[int], looks: Sequence[Seen], end: int) -> list[float] | None:
    """Reach by depth at step `end`, seen with hope: a line over the logarithm of steps.

    It is drawn through the later half of the looks, and two standard errors are added to its slope.
    None while there are too few, or while it begins to learn: the curve is steeper later.
    """
    if len(looks) < FEWEST or steps[-1] < BEGINNING * end:
        return None
    count = max(3, len(looks) // 2)
    x = np.log(np.maximum(steps[-count:], 1))
    found: list[float] = []
    for d in range(len(looks[-1].reach)):
        y = np.array([look.reach[d].value for look in looks[-count:]])
        spread = ((x - x.mean()) ** 2).sum()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
        rest = y - y.mean() - slope * (x - x.mean())
        error = float(np.sqrt((rest**2).sum() / max(len(x) - 2, 1) / spread))
        ahead = y[-1] + max(slope + 2 * error, 0.0) * (np.log(max(end, 1)) - x[-1])
        found.append(float(np.clip(ahead, 0.0, found[-1] if found else 1.0)))
    return found
