"""95 % intervals for functions of sums over generations, by a cluster jackknife.

Generations of one sample share its prompt and are not independent, so the jackknife leaves out
samples: all repeats of a sample stay together (clustered errors: Miller 2024, arXiv 2411.00640).
Standard error and skewness are the jackknife's (Efron and Tibshirani 1993, chapter 11), on a scale
that suits the figure. The interval is the union of two: Student's, which assumes no skewness, and
that of Hall (1992, "On the removal of skewness by transformation"), which trusts the skewness of
few samples. There is no bootstrap: few skewed samples show too little of the tail, and BCa
intervals cover 0.80 to 0.88 over 8 samples where this interval covers 0.93 and more. Means of
values with known ends have exact bounds (`upper`, `lower`), which hold for rare events too.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Statistic = Callable[[Floats], Floats]
"""A figure of sums: [..., F] sums -> [...] figure; not finite where the figure does not apply."""

FEWEST = 8  # clusters; for fewer no interval is known to cover
ALIKE = 1e-12  # relative; summation order changes the last bit
NONE = 1e-6  # skewness below which the closed form loses digits
MAX_SKEWNESS = 0.4  # skewness above which the cubic flattens: wider intervals cover no better
LEVEL = 0.95
NORMAL = NormalDist()


class Estimate(NamedTuple):
    """A mean with its 95 % interval and its number of generations."""

    mean: float
    low: float | None  # None: unknown error, as with fewer than `FEWEST` samples
    high: float | None
    n: int  # number of generations (samples, for a quality metric)
    loaded: bool = False  # timed while other work used the machine, for lack of other timings

    @property
    def undecided(self) -> bool:
        """Return whether load leaves a gain open: load within a few pairs moves it either way."""
        return self.loaded and self.low is None

    def to_json(self) -> dict[str, float | bool | None]:
        """Return the fields by name; `loaded` only where it holds."""
        values = self._asdict()
        return values if self.loaded else {name: values[name] for name in self._fields[:4]}

    @property
    def certain(self) -> "Estimate":
        """Return an exact estimate: an interval of zero width, for values fixed by definition."""
        return self._replace(low=self.mean, high=self.mean)


class Scale(NamedTuple):
    """A transformation that makes a figure nearly normal, with its inverse, clipped at the ends."""

    to: Callable[[Floats], Floats]
    back: Callable[[Floats], Floats]
    chance: bool = False  # a proportion: unanimous samples leave a one-sided bound


PLAIN = Scale(lambda values: values, lambda values: values)
FROM_ZERO = Scale(lambda values: values, lambda values: np.maximum(values, 0))
POSITIVE = Scale(np.log, np.exp)  # times, lengths and their ratios
SHARE = Scale(  # 0 to 1, both included; log odds exist at neither end
    lambda values: np.arcsin(np.sqrt(np.clip(values, 0, 1))),
    lambda angles: np.sin(np.clip(angles, 0, np.pi / 2)) ** 2,
)
CHANCE = SHARE._replace(chance=True)


class Jackknife:
    """The sums of clusters, shared by all figures of one table.

    Args:
        rows: [R, F] summands of each generation for each of F sums.
        clusters: [R] the index of its sample, 0 .. C-1.
    """

    def __init__(self, rows: Floats, clusters: NDArray[np.intp]) -> None:
        self._rows = rows
        self._sums = np.zeros((int(clusters.max(initial=-1)) + 1, rows.shape[1]))  # [C, F]
        np.add.at(self._sums, clusters, rows)
        self._total = self._sums.sum(0)  # [F]

    def estimate(
        self, statistic: Statistic, counted: int, scale: Scale = POSITIVE
    ) -> Estimate | None:
        """Return the `statistic` of all rows' sums with its interval; None where it is not finite.

        `n` counts the rows above 0 in the column `counted`, usually the denominator; samples
        without such rows leave the interval alone. Fewer than `FEWEST` samples have no interval,
        and nor have samples none of which changes the figure; but the bound of a chance of 0 or 1
        is one-sided.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = float(statistic(self._total))
            if not math.isfinite(mean):
                return None
            n = int((self._rows[:, counted] > 0).sum())
            taking_part = self._sums[self._sums[:, counted] > 0]
            if scale.chance and mean in (0, 1):
                return Estimate(mean, *one_sided(mean, len(taking_part)), n)
            if len(taking_part) < FEWEST:
                return Estimate(mean, None, None, n)
            left_out = statistic(self._total - taking_part)
        low, high = interval(mean, left_out, scale)
        return Estimate(mean, low, high, n)


def ratio_of(numerator: int, denominator: int) -> Statistic:
    """Return the statistic of a ratio of two columns' sums."""
    return lambda sums: sums[..., numerator] / sums[..., denominator]


def interval(
    mean: float, left_out: Floats, scale: Scale = POSITIVE
) -> tuple[float | None, float | None]:
    """Return the 95 % interval around `mean`, by the figure without each of C > 2 clusters, [C].

    (None, None) where one of those is not finite or none differs from `mean`. A figure without a
    value on `scale`, as the logarithm of 0, has its interval on the identity, clipped at 0.
    """
    if not np.isfinite(left_out).all() or np.abs(left_out - mean).max() <= ALIKE * abs(mean):
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        at, others = scale.to(np.array(mean)), scale.to(left_out)
    if not (np.isfinite(at) and np.isfinite(others).all()):
        scale, at, others = FROM_ZERO, np.array(mean), left_out
    if others.min() == others.max():
        return None, None
    low, high = (float(scale.back(end)) for end in ends(at, others))
    return min(low, mean), max(high, mean)


def ends(at: Floats, left_out: Floats) -> tuple[Floats, Floats]:
    """Return [...] lows and highs around figures `at`, by [..., C > 2] ones without a cluster.

    The wider of Student's interval, of C - 2 degrees of freedom, and Hall's.
    """
    count = left_out.shape[-1]
    influences = left_out.mean(-1, keepdims=True) - left_out  # over C - 1
    squares = (influences**2).sum(-1)
    error = np.sqrt(squares * (count - 1) / count)
    # skewness of the mean of C, from the sample skewness of one, with its bias (Joanes and Gill
    # 1998, G1)
    skewness = (influences**3).sum(-1) / squares**1.5
    skewness *= math.sqrt(count * (count - 1)) / (count - 2)
    skewness = np.clip(skewness, -MAX_SKEWNESS, MAX_SKEWNESS)
    far = student_quantile((1 + LEVEL) / 2, count - 2)  # a ratio has two unknown means
    low = at - error * np.maximum(far, correct_skewness(far, skewness))
    return low, at - error * np.minimum(-far, correct_skewness(-far, skewness))


def correct_skewness(quantile: float, skewness: Floats) -> Floats:
    """Return the quantile of a studentised mean of this skewness (Hall 1992)."""
    some = np.where(np.abs(skewness) < NONE, NONE, skewness)
    return np.asarray(3 / some * (np.cbrt(1 + some * (quantile - some / 6)) - 1))


def student_quantile(p: float, df: int) -> float:
    """Return Student's t quantile (Abramowitz and Stegun 26.7.5), within 0.002 from df = 5 on."""
    z = NORMAL.inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / df**i for i, term in enumerate(terms, start=1)))


EXACT = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}
"""Quantiles of Student's t at 97.5 % where `student_quantile`'s expansion is too rough."""


def around_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of one or more values, with Student's `LEVEL` interval if any two differ."""
    mean, n = math.fsum(values) / len(values), len(values)
    if n < 2 or min(values) == max(values):
        return Estimate(mean, None, None, n)
    far = EXACT.get(n - 1) or student_quantile((1 + LEVEL) / 2, n - 1)
    side = far * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - side, mean + side, n)


def one_sided(mean: float, count: int, greatest: float = 1.0) -> tuple[float, float]:
    """Return the interval where `count` values of 0 .. `greatest` are all at one end, `mean`.

    Clopper and Pearson (1934) for yes and no; Gaffke (2005, see `upper`) for other values.
    """
    beyond = greatest * (1 - ((1 - LEVEL) / 2) ** (1 / count))
    return (0.0, beyond) if mean == 0 else (greatest - beyond, greatest)


def of_means(values: Floats, greatest: float | None = None) -> Estimate | None:
    """Return the mean of one value a sample, with its interval; None for no values.

    No interval for fewer than `FEWEST` values or equal ones, unless `greatest` is given and
    all are 0 or `greatest`: their number then gives a bound. Clipped to 0 where no value is below
    it, and to `greatest`, or 1 where that is unknown and no value is above 1.
    """
    if not len(values):
        return None
    mean, n = float(values.mean()), len(values)
    if greatest is not None and values.min() == values.max() and mean in (0, greatest):
        return Estimate(mean, *one_sided(mean, n, greatest), n)
    if n < FEWEST or values.min() == values.max():
        return Estimate(mean, None, None, n)
    low, high = interval(mean, (values.sum() - values) / (n - 1), PLAIN)
    if low is not None and high is not None:
        low = max(low, 0.0) if values.min() >= 0 else low
        high = min(high, greatest or (1.0 if values.max() <= 1 else high))
    return Estimate(mean, low, high, n)


STEPS = 50  # bisections of the tilt
FARTHEST = 60.0  # logarithm of the greatest tilt
CLOSE = 1e-6  # relative tolerance of the chance
NEAR = 1e-2  # standard deviations around the middle


def upper(values: Floats, end: float, miss: float) -> float:
    """Return an upper bound of a mean, which exceeds it with probability at most `miss` < 1/2.

    `values` are independent, [N], at least one, and none above `end`, the greatest possible value.
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
    """Return the lower bound of a mean, as `upper` does; `end` is the least possible value."""
    return -upper(-values, -end, miss)


def fewest(margin: float, miss: float) -> int:
    """Return the number of values at which `upper` of zeros, with the end 1, is below `margin`."""
    return math.floor(math.log(miss) / math.log1p(-margin)) + 1 if margin < 1 else 1


def _below(gaps: Floats, weights: Floats, tilt: float) -> tuple[float, float]:
    """Return the gap of a `tilt`, and the chance that the weighted mean of gaps is below the gap.

    The mean is below c where sum_i G_i (g_i - c) < 0, G_i ~ Gamma(weight_i). For a tilt t, the c
    whose saddlepoint is t has a closed form: the mean of gaps with weights w_i / (1 + t g_i).
    """
    spread = 1 + tilt * gaps
    shares = weights / spread
    c = float(shares @ gaps / shares.sum())
    spread /= 1 + tilt * c
    root = math.sqrt(max(2 * float(weights @ np.log(spread)), 0.0))
    deviation = math.sqrt(float(weights @ ((gaps - c) / spread) ** 2))
    slope = tilt / (1 + tilt * c) * deviation
    if root < NEAR:  # near a half the quotient below loses digits
        return c, 0.5
    return c, NORMAL.cdf(-root - math.log(slope / root) / root)
