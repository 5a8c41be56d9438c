"""Parity of quality between SpS and ArS: paired differences and an equivalence test (TOST).

Two one-sided tests (Schuirmann 1987) against a margin stated beforehand, paired by sample (Miller
2024, arXiv 2411.00640), however many texts each sample has. Where a run has all samples of a task
and several answers to each, differences are by answer: the mean over these samples is asked for,
and that they are fixed only lessens its spread (Hoeffding 1963, section 6). Bounds
(`intervals.upper`) hold for rare differences too, whose observed spread may be 0.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import (
    FEWEST,
    LEVEL,
    NORMAL,
    Estimate,
    Floats,
    around_mean,
    fewest,
    lower,
    upper,
)
from spsbench.metrics.rates import baseline
from spsbench.registry import entries
from spsbench.settings.cell import Cell
from spsbench.settings.records import Score
from spsbench.settings.task import Metric

Combine = Callable[[Sequence[Sequence[dict[str, float]]]], dict[str, list[float]]]
"""A combination of scores: by sample and repeat -> for each figure one value a sample.

`Task.combine` is one.
"""


@cache
def task_metrics() -> Mapping[str, Metric]:
    """Return name -> metric of every task, cached; a task that fails to import is left out."""
    by_name: dict[str, Metric] = {}
    for entry in entries("tasks"):
        with suppress(Exception):  # tasks of other packages may fail to import
            by_name |= entry.load().quality
    return by_name


def greatest(metric: str) -> float | None:
    """Return the score of a perfect text; None: no task defines one."""
    return task_metrics()[metric].greatest if metric in task_metrics() else None


def is_percent(metric: str) -> bool:
    """Return whether a metric is scored in 0 .. 100; parity and the paper are on 0 .. 1."""
    return greatest(metric) == 100


def parity_margins() -> dict[str, float]:
    """Return the negligible difference of each metric that has a margin, on 0 .. 1."""
    return {
        name: metric.margin for name, metric in task_metrics().items() if metric.margin is not None
    }


Qualities = dict[str, dict[str, float]]
"""Figure -> sample -> value."""


def average(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
    """Return metric -> its mean over the repeats of each sample: a task's default combination."""
    names = list(dict.fromkeys(name for repeats in scores for one in repeats for name in one))
    return {
        name: [sum(one[name] for one in repeats) / len(repeats) for repeats in scores]
        for name in names
    }


def qualities(scores: Iterable[Score], combine: Combine = average) -> Qualities:
    """Return figure -> sample -> value of one cell's scores, which come in any order.

    `combine` gets all at once, by sample (sorted) and repeat. {} without scores. ValueError: it
    returned other than one value a sample.
    """
    repeats: dict[str, dict[int, dict[str, float]]] = {}
    for score in scores:
        repeats.setdefault(score.sample, {})[score.repeat] = score.metrics
    samples = sorted(repeats)
    ordered = [[repeats[sample][i] for i in sorted(repeats[sample])] for sample in samples]
    combined = combine(ordered) if ordered else {}
    return {name: dict(zip(samples, v, strict=True)) for name, v in combined.items()}


MISS = 0.05  # most chance of "equivalent" where the true difference is the margin
MISSED = 0.2  # chance of missing equivalence at the recommended number of samples


class ParityVerdict(StrEnum):
    """The verdict of a parity test."""

    IDENTICAL = "identical"  # all texts are identical
    EQUIVALENT = "equivalent"  # within the margin
    DIFFERENT = "different"
    UNDECIDED = "undecided"  # more samples needed
    NOT_INFORMATIVE = "not informative"  # at floor or ceiling, or all alike: no power


MOST_NEEDED = 10_000
"""Samples beyond which a number of them is no advice."""


class Parity(NamedTuple):
    """The parity of SpS and ArS on one metric, all numbers on 0 .. 1; in words on its own scale."""

    metric: str
    ars: float  # mean over the samples that both methods have
    sps: float
    difference: Estimate  # SpS - ArS, by sample, with the bound that the verdict rests on
    margin: float
    needed: int  # samples needed if there is no difference
    verdict: ParityVerdict
    usual: Estimate | None = None  # the difference with Student's interval over samples
    available: int | None = None  # samples that the task has; None = unknown
    unit: str = "samples"  # what n counts; or "answers to all 164 samples", those of the task

    def __str__(self) -> str:
        """Return the verdict in words, with its margin or the shortfall where either decided."""
        margin = f"{self.margin * self.scale:g}"
        if self.verdict is ParityVerdict.IDENTICAL:
            return f"{self.verdict}, since all texts are equal"
        if self.verdict is ParityVerdict.EQUIVALENT:
            return f"{self.verdict} within {margin}{' on these' * (self.unit != 'samples')}"
        if self.verdict is ParityVerdict.UNDECIDED and self.difference.n < self.needed:
            return f"{self.verdict} within {margin}, {self._shortfall}"
        return str(self.verdict)

    @property
    def _shortfall(self) -> str:
        if self.unit == "samples" and self.available and self.needed > self.available:
            return f"more samples than the {self.available:,} of this task would be needed"
        if self.needed > MOST_NEEDED:
            return f"more than {MOST_NEEDED:,} {self.unit} would be needed"
        return f"about {self.needed:,} {self.unit} would decide"

    @property
    def scale(self) -> int:
        """Return what the numbers are multiplied by in words, as in the tables: ROUGE-2 by 100."""
        return 100 if is_percent(self.metric) else 1

    @property
    def shown(self) -> Estimate:
        """Return the difference on the metric's own scale, with Student's interval."""
        mean, low, high, n, _ = self.usual or self.difference
        low, high = (None if end is None else self.scale * end for end in (low, high))
        return Estimate(self.scale * mean, low, high, n)

    @property
    def sentence(self) -> str:
        """Return both means, the difference with its intervals, and the verdict."""
        digits, scale = 2 if self.scale == 100 else 4, self.scale
        text = (
            f"{self.metric} {self.ars * scale:.{digits}f} with ArS, {self.sps * scale:.{digits}f} "
            f"with SpS over {self.difference.n:,} {self.unit}, "
            f"difference {self.shown.mean:+.{digits}f}"
        )
        ends = [end for end in (self.shown.low, self.shown.high) if end is not None]
        if self.usual is not None and ends:
            text += f" [{', '.join(f'{end:+.{digits}f}' for end in ends)}]"
        if self.bounded:
            bounds = (self.difference.low or 0.0, self.difference.high or 0.0)
            text += f", bound [{', '.join(f'{end * scale:+.{digits}f}' for end in bounds)}]"
        return f"{text}: {self}"

    @property
    def bounded(self) -> bool:
        """Return whether the verdict rests on a bound."""
        return self.difference.low is not None and self.verdict is not ParityVerdict.IDENTICAL


OF_QUALITY = (
    "Brackets of a difference in quality are its 95 % interval, paired by sample (Student's t); "
    "the bound holds for scores of any distribution, and the verdict rests on it"
)
"""The meaning of the intervals in `Parity.sentence`."""


def parity(
    metric: str,
    ars: Mapping[str, float],
    sps: Mapping[str, float],
    margin: float,
    *,
    identical: bool = False,
) -> Parity | None:
    """Return the verdict over the samples that both methods have; None without common samples.

    `ars` and `sps` are sample -> value, from `qualities`. `margin` is the largest negligible
    difference, stated beforehand; ValueError: 0 or less. `identical` texts decide without a test,
    unless equal texts have different scores. Fewer than `FEWEST` samples decide nothing. Values
    that are all alike, or means within the margin of 0 or of 1, are not informative.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}: expected more than 0")
    shared = [sample for sample in ars if sample in sps]
    if not shared:
        return None
    old, new = (np.array([scores[sample] for sample in shared]) for scores in (ars, sps))
    means = float(old.mean()), float(new.mean())
    n, differences = len(shared), new - old
    if identical and not differences.any():
        none = Estimate(0.0, 0.0, 0.0, n)
        return Parity(metric, *means, none, margin, 0, ParityVerdict.IDENTICAL)
    reach = max(1.0, float(np.abs(differences).max()))  # scores are on 0 .. 1
    needed = _samples_needed(differences / reach, margin / reach)
    difference = Estimate(float(differences.mean()), None, None, n)
    if n < FEWEST:
        return Parity(metric, *means, difference, margin, needed, ParityVerdict.UNDECIDED)
    low, high = _bound_mean(differences, reach, (1 - LEVEL) / 2)
    difference, usual = difference._replace(low=low, high=high), around_mean(differences)

    least, greatest = _bound_mean(differences, reach, MISS)
    alike = min(old.min(), new.min()) == max(old.max(), new.max())
    if alike or max(means) <= margin or min(means) >= 1 - margin:  # no evidence at an end
        verdict = ParityVerdict.NOT_INFORMATIVE
    elif -margin < least and greatest < margin:  # both one-sided tests
        verdict = ParityVerdict.EQUIVALENT
    elif low > 0 or high < 0:
        verdict = ParityVerdict.DIFFERENT
    else:
        verdict = ParityVerdict.UNDECIDED
    return Parity(metric, *means, difference, margin, needed, verdict, usual)


def _bound_mean(differences: Floats, reach: float, miss: float) -> tuple[float, float]:
    """Return the bounds of the mean, each missed with probability `miss`."""
    return lower(differences, -reach, miss), upper(differences, reach, miss)


def _samples_needed(differences: Floats, margin: float) -> int:
    """Return the samples of this spread at which equal methods pass with chance 1 - `MISSED`.

    A bound is as far from the mean as its normal part, over the root of n, and the part that equal
    samples have, over n. The spread of few samples is uncertain: half of `MISSED` is for that.
    """
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    sure = NORMAL.inv_cdf(1 - MISS) + NORMAL.inv_cdf(1 - MISSED / 4)
    normal, alike = sure * spread / margin, fewest(margin, MISS)
    return max(FEWEST, math.ceil((normal / 2 + math.sqrt(normal**2 / 4 + alike)) ** 2 - 1e-6))


def parities_of(old: Qualities, new: Qualities, *, identical: bool = False) -> list[Parity]:
    """Test new scores by old ones on each metric with a margin and common samples; see `parity`."""
    margins = parity_margins()
    tests = (
        parity(metric, old[metric], new[metric], margins[metric], identical=identical)
        for metric in new
        if metric in old and metric in margins
    )
    return [test for test in tests if test is not None]


def parities(
    cells: Sequence[Cell],
    scores: Mapping[str, Qualities],
    identical: Container[str] = (),
    answers: Mapping[str, Qualities] | None = None,
) -> list[tuple[Cell, Parity]]:
    """Test each drafting cell that has a K = 0 cell against that, as `parities_of` does.

    `scores` is the id of every cell -> figure -> sample -> value, from 0 to 1; `identical` has the
    ids of the cells whose texts equal those of their K = 0 cell. `answers` has the same by answer,
    of cells with several answers to all samples of their task: two such are tested by answer,
    others by sample.
    """
    tests = []
    for cell in cells:
        if cell.k != 0 and (base := baseline(cell, cells)) is not None:
            compared, unit = scores, "samples"
            if answers and {base.id, cell.id} <= answers.keys():
                samples = next(iter(scores[cell.id].values()))
                compared, unit = answers, f"answers to all {len(samples):,} samples"
            old, new = compared[base.id], compared[cell.id]
            of_cell = parities_of(old, new, identical=cell.id in identical)
            tests += [(cell, test._replace(unit=unit)) for test in of_cell]
    return tests
