"""pass@k: the chance that one of k programs passes (Chen et al. 2021, arXiv 2107.03374, eq. 1).

Its interval is over problems, for other problems of the same kind.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from spsbench.metrics.intervals import Estimate, of_means

K = (1, 10, 100)  # what papers report


class Passes(NamedTuple):
    """Counts of the programs of one problem."""

    n: int  # number judged
    c: int  # number passed


def estimate(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k in [0, 1] from `c` passes of `n` programs.

    The estimate is 1 - C(n - c, k) / C(n, k).

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} passes in {n}: expected 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    # The quotient is the product of 1 - k / i; as a sum of logarithms nothing can overflow.
    return 0.0 - math.expm1(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def over_problems(tallies: Sequence[Passes], k: int) -> Estimate:
    """Return mean pass@k with its 95 % interval over problems: a jackknife of problems.

    Raises:
        ValueError: no problems, or one with fewer than k programs.
    """
    mean = of_means(numpy.array([estimate(n, c, k) for n, c in tallies]), 1.0)
    if mean is None:
        raise ValueError("pass@k needs at least one problem")
    return mean
