"""Bounds of a mean whose values have known ends; they hold for rare events too.

Of rare failures none may have been seen, and then the spread that was seen tells nothing. The bound
of Gaffke (2005; Learned-Miller and Thomas 2019, arXiv 1905.06208) adds one value at the worst end
and weighs all of them by Dirichlet(1, ..., 1): of yes and no it is the exact bound of Clopper and
Pearson (1934). The quantile of the weighted mean is taken by the saddlepoint approximation of
Lugannani and Rice (1980) in the form of Barndorff-Nielsen (1986), not by draws.
"""

import math
from statistics import NormalDist

import numpy as np

from spsbench.metrics.intervals import Floats

NORMAL = NormalDist()
STEPS = 50  # that halve the range of the tilt
FARTHEST = 60.0  # logarithm of the greatest tilt
CLOSE = 1e-6  # relative, in the chance that is sought
NEAR = 1e-2  # standard deviations from the middle


def upper(values: Floats, end: float, miss: float) -> float:
    """What the mean exceeds with probability `miss` at most.

    Args:
        values: [N] independent ones, none above `end`; at least one.
        end: the greatest value that could have been.
        miss: below a half.
    """
    seen, counts = np.unique(values, return_counts=True)
    widest = float(end - seen[0])
    if widest <= 0:
        return end
    if len(seen) == 1:  # the mean of gaps is widest * Beta(N, 1)
        return float(end - widest * miss ** (1 / len(values)))
    gaps = (end - np.append(seen, end)) / widest  # [U] from the worst end, 0 .. 1
    weights = np.append(counts, 1).astype(np.float64)
    low, high, gap = -FARTHEST, FARTHEST, 0.0
    for _ in range(STEPS):
        tilt = (low + high) / 2
        gap, chance = _below(gaps, weights, math.exp(tilt))
        if abs(chance - miss) < CLOSE * miss:
            break
        low, high = (tilt, high) if chance > miss else (low, tilt)
    return float(end - widest * gap)


def lower(values: Floats, end: float, miss: float) -> float:
    """What the mean falls short of with probability `miss` at most; `end` is the least value."""
    return -upper(-values, -end, miss)


def fewest(margin: float, miss: float) -> int:
    """How many values it takes until `upper` of zeros, with the end 1, is below `margin`."""
    return math.floor(math.log(miss) / math.log1p(-margin)) + 1 if margin < 1 else 1


def _below(gaps: Floats, weights: Floats, tilt: float) -> tuple[float, float]:
    """A gap, and the chance that the weighted mean of gaps is below it.

    The mean is below c where sum_i G_i (g_i - c) < 0, G_i ~ Gamma(weight_i). Given the tilt t the c
    whose saddlepoint it is has a closed form: the mean of gaps by weights w_i / (1 + t g_i).
    """
    spread = 1 + tilt * gaps
    shares = weights / spread
    c = float(shares @ gaps / shares.sum())
    spread /= 1 + tilt * c
    root = math.sqrt(max(2 * float(weights @ np.log(spread)), 0.0))
    deviation = math.sqrt(float(weights @ ((gaps - c) / spread) ** 2))
    slope = tilt / (1 + tilt * c) * deviation
    if root < NEAR:  # about a half; the quotient below would lose its digits
        return c, 0.5
    return c, NORMAL.cdf(-root - math.log(slope / root) / root)
