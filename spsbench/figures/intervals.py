"""95 % intervals for figures that are functions of sums over generations, by cluster bootstrap.

Generations of one sample share its prompt and are not independent, so samples are what is drawn
again: all repeats of a sample stay together (clustered errors: Miller 2024, arXiv 2411.00640). The
intervals are BCa (Efron 1987), whose corrections a ratio of sums over few prompts needs.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Statistic = Callable[[Floats], Floats]
"""[..., F] sums -> [...] figure; where it does not apply, not a finite number."""

RESAMPLES = 1_000
AT_ONCE = 1_000_000  # weights held in memory at a time
NORMAL = NormalDist()


class Estimate(NamedTuple):
    """A mean with its 95 % interval, and what it stands on."""

    mean: float
    low: float | None  # None: nothing tells of the error, as with fewer than two samples
    high: float | None
    n: int  # generations in it (samples, for a quality metric)


class Bootstrap:
    """Seeded resamples of rows by cluster, shared by all figures of one table.

    Args:
        rows: [R, F] what each generation adds to each of F sums.
        clusters: [R] the index of its sample, 0 .. C-1.
    """

    def __init__(self, rows: Floats, clusters: NDArray[np.intp]) -> None:
        self._rows, self._clusters = rows, clusters
        self._sums = np.zeros((int(clusters.max(initial=-1)) + 1, rows.shape[1]))  # [C, F]
        np.add.at(self._sums, clusters, rows)
        self._total = self._sums.sum(0)  # [F]
        self._draws = _resampled(self._sums)  # [B, F]

    def estimate(self, statistic: Statistic, counted: int) -> Estimate | None:
        """The figure of all rows; None where it does not apply.

        `counted` is the column that a row must have in it to take part, a denominator as a rule.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = float(statistic(self._total))
            if not math.isfinite(mean):
                return None
            taking_part = self._rows[:, counted] > 0
            n = int(taking_part.sum())
            inside = self._clusters[taking_part]
            if n == 0 or inside.min() == inside.max():
                return Estimate(mean, None, None, n)
            draws = _finite(statistic(self._draws))
            left_out = _finite(statistic(self._total - self._sums))
        low, high = bca(mean, draws, left_out)
        return Estimate(mean, low, high, n)


def over(numerator: int, denominator: int) -> Statistic:
    """The ratio of two columns' sums."""
    return lambda sums: sums[..., numerator] / sums[..., denominator]


def bca(mean: float, draws: Floats, left_out: Floats, level: float = 0.95) -> tuple[float, float]:
    """The bias-corrected and accelerated interval (Efron 1987).

    Args:
        draws: [B] the figure of each resample.
        left_out: [C] the figure without each cluster in turn.
    """
    tied = np.abs(draws - mean) <= 1e-12 * abs(mean)  # sums in another order differ in the last bit
    below = float(np.mean(np.where(tied, 0.5, draws < mean)))
    bias = NORMAL.inv_cdf(min(max(below, 0.5 / len(draws)), 1 - 0.5 / len(draws)))
    deviations = left_out.mean() - left_out
    spread = float((deviations**2).sum()) ** 1.5
    acceleration = float((deviations**3).sum()) / (6 * spread) if spread else 0.0

    def corrected(quantile: float) -> float:
        shifted = bias + NORMAL.inv_cdf(quantile)
        return NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))

    tail = (1 - level) / 2
    low, high = np.quantile(draws, [corrected(tail), corrected(1 - tail)])
    return min(float(low), mean), max(float(high), mean)


def of_means(values: Floats) -> Estimate | None:
    """The mean of one value a sample, with its interval; None for no values.

    Values that are all alike have no interval: none of them shows how far others may lie.
    """
    if len(values) and values.min() == values.max():
        return Estimate(float(values[0]), None, None, len(values))
    rows = np.stack([values, np.ones_like(values)], axis=1)
    return Bootstrap(rows, np.arange(len(values))).estimate(over(0, 1), counted=1)


def _resampled(sums: Floats) -> Floats:
    """[B, F] the totals of B draws of C clusters with replacement, the same ones every time."""
    clusters = len(sums)
    if clusters == 0:
        return np.zeros((RESAMPLES, sums.shape[1]))
    weights, size = _weights(clusters), _at_once(clusters)
    chunks = (weights[start : start + size] for start in range(0, RESAMPLES, size))
    return np.concatenate([chunk.astype(np.float64) @ sums for chunk in chunks])


@lru_cache(maxsize=1)
def _weights(clusters: int) -> NDArray[np.uint8]:
    """[B, C] how often each cluster is drawn; kept, for the cells of a run share their samples."""
    random = np.random.default_rng(0)
    weights = np.empty((RESAMPLES, clusters), dtype=np.uint8)
    size = _at_once(clusters)
    for start in range(0, RESAMPLES, size):
        count = min(size, RESAMPLES - start)
        drawn = random.integers(0, clusters, (count, clusters), dtype=np.int64)
        drawn += clusters * np.arange(count)[:, None]  # so that one count serves all resamples
        counts = np.bincount(drawn.ravel(), minlength=count * clusters)
        weights[start : start + count] = counts.reshape(count, clusters)
    return weights


def _at_once(clusters: int) -> int:
    return max(1, AT_ONCE // clusters)


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
