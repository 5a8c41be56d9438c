"""pass@k: the chance that one of k programs passes (Chen et al. 2021, arXiv 2107.03374, eq. 1).

There are two intervals: over problems, for other problems of the same kind; over samples, for other
programs drawn for the same problems.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from spsbench.metrics.intervals import FEWEST, LEVEL, NORMAL, Estimate, of_means, one_sided

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


def over_samples(tallies: Sequence[Passes], k: int) -> Estimate:
    """Return mean pass@k with its 95 % interval over the programs drawn for the problems.

    The score interval (Wilson 1927) of as many programs as have the standard error that the
    jackknife finds within the problems. If none pass, or all, the interval of Clopper and Pearson
    (1934) of one program's chance p: pass@k is at most 1 - (1 - p)^k and at least p, however
    problems differ. There is no interval for fewer than `FEWEST` programs, or where no problem
    shows how its programs vary (all of them pass or fail alike, or there are only k).

    Raises:
        ValueError: no problems, or one with fewer than k programs.
    """
    if not tallies:
        raise ValueError("pass@k needs at least one problem")
    count = len(tallies)
    mean = math.fsum(estimate(n, c, k) for n, c in tallies) / count
    programs, passed = sum(tally.n for tally in tallies), sum(tally.c for tally in tallies)
    if passed in (0, programs):
        low, high = one_sided(mean, programs)
        return Estimate(mean, low, 1 - (1 - high) ** k, count)
    variance = math.fsum(_variance(tally, k) for tally in tallies) / count**2
    if programs < FEWEST or not variance:
        return Estimate(mean, None, None, count)
    z = NORMAL.inv_cdf((1 + LEVEL) / 2)
    spare = z * z * variance / (mean * (1 - mean))  # z^2 over the effective number of programs
    side = z * math.sqrt(variance + z * z * (variance / (mean * (1 - mean)) / 2) ** 2)
    low, high = ((mean + spare / 2 + end) / (1 + spare) for end in (-side, side))
    return Estimate(mean, low, high, count)


def _variance(tally: Passes, k: int) -> float:
    """Return the jackknife variance of a problem's pass@k; 0 where none can be estimated."""
    n, c = tally
    if n <= k or not 0 < c < n:
        return 0.0
    passed, failed = estimate(n - 1, c - 1, k), estimate(n - 1, c, k)  # without one of these
    return (n - 1) / n * c * (n - c) / n * (failed - passed) ** 2
