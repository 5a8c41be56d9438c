"""pass@k: the chance that one of k programs passes (Chen et al. 2021, arXiv 2107.03374, eq. 1).

Two intervals answer two questions, so both are named: over problems, were other problems of the
kind asked; over samples, were other programs drawn for these problems.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from spsbench.figures.intervals import NORMAL, RESAMPLES, Estimate, Floats, of_means


class Tally(NamedTuple):
    """The programs of one problem."""

    n: int  # judged
    c: int  # of them passed


def estimate(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k, in [0, 1], from `c` passes of `n`: 1 - C(n - c, k) / C(n, k).

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} passes in {n}: expected 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    # The quotient is the product of 1 - k / i; as a sum of logarithms nothing can overflow.
    return 0.0 - math.expm1(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def over_problems(tallies: Sequence[Tally], k: int) -> Estimate:
    """Mean pass@k with its 95 % interval over problems: a seeded bootstrap of the problems.

    Raises:
        ValueError: no problems, or one with fewer than k programs.
    """
    found = of_means(numpy.array([estimate(n, c, k) for n, c in tallies]))
    if found is None:
        raise ValueError("pass@k needs at least one problem")
    return found


def over_samples(tallies: Sequence[Tally], k: int, seed: int = 0) -> Estimate:
    """Mean pass@k with its 95 % interval over the programs drawn for these very problems.

    Normal, with the standard error of seeded resamples of each problem's verdicts (their
    percentiles would be off: a resample repeats verdicts, which lowers pass@k). With k near n a
    problem has hardly more than one verdict at pass@k, and the interval is too narrow.

    Raises:
        ValueError: no problems, or one with fewer than k programs.
    """
    if not tallies:
        raise ValueError("pass@k needs at least one problem")
    mean = math.fsum(estimate(n, c, k) for n, c in tallies) / len(tallies)
    draw = numpy.random.default_rng(seed)
    totals = numpy.zeros(RESAMPLES)
    tables = {n: _table(n, k) for n in {tally.n for tally in tallies}}
    for n, c in tallies:
        totals += tables[n][draw.binomial(n, c / n, size=RESAMPLES)]
    margin = NORMAL.inv_cdf(0.975) * float((totals / len(tallies)).std(ddof=1))
    return Estimate(mean, max(0.0, mean - margin), min(1.0, mean + margin), len(tallies))


def _table(n: int, k: int) -> Floats:
    """pass@k of every number of passes, 0 to n."""
    return numpy.array([estimate(n, c, k) for c in range(n + 1)])
