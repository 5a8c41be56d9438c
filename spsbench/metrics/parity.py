"""Is the quality of SpS that of ArS? Paired differences, and a test that can say yes (TOST).

That no difference was found never shows that there is none: two one-sided tests (Schuirmann 1987)
against a margin stated beforehand do. Pairing by sample takes the samples' own difficulty out
(Miller 2024, arXiv 2411.00640).

The samples are the unit, however many texts of each there are: others could have been asked. Their
bounds (`bounded`) hold where a difference sits in few of them, as with a rare yes or no, of which
the spread that was seen may tell nothing: a difference of the margin in samples not yet met is
ruled out only by their number.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import FEWEST, LEVEL, NORMAL, Estimate, Floats, fewest, lower, upper
from spsbench.metrics.rates import baseline
from spsbench.registry import entries
from spsbench.settings.cell import Cell
from spsbench.settings.records import Score
from spsbench.settings.task import Metric

# Scores -> values by sample: what quality figures and the parity of two arms stand on.

Combine = Callable[[Sequence[Sequence[dict[str, float]]]], dict[str, list[float]]]
"""Scores by sample and repeat -> for each figure one value a sample, as `Task.combine` does."""


@cache
def metrics() -> Mapping[str, Metric]:
    """Return what every task says of its figures, those of installed packages included."""
    found: dict[str, Metric] = {}
    for entry in entries("tasks"):
        with suppress(Exception):  # a task of another package that cannot be imported says nothing
            found |= entry.load().quality
    return found


def greatest(metric: str) -> float | None:
    """Return the value of a perfect text; None: no task says so."""
    return metrics()[metric].greatest if metric in metrics() else None


def is_percent(metric: str) -> bool:
    """Return whether a metric is scored in 0 .. 100; parity and the paper are on 0 .. 1."""
    return greatest(metric) == 100


def parity_margins() -> dict[str, float]:
    """Return, for each metric that has one, the difference that does not matter, on 0 .. 1."""
    return {name: each.margin for name, each in metrics().items() if each.margin is not None}


Qualities = dict[str, dict[str, float]]
"""Figure -> sample -> value."""


def average(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
    """The mean over repeats of every metric: the combination of a task that says nothing else."""
    names = list(dict.fromkeys(name for repeats in scores for one in repeats for name in one))
    return {
        name: [sum(one[name] for one in repeats) / len(repeats) for repeats in scores]
        for name in names
    }


def qualities(scores: Iterable[Score], combine: Combine = average) -> Qualities:
    """The values of one cell's scores; the order of scores does not matter.

    Raises:
        KeyError: a metric is missing from one of the scores.
        ValueError: `combine` returned other than one value a sample.
    """
    repeats: dict[str, dict[int, dict[str, float]]] = {}
    for score in scores:
        repeats.setdefault(score.sample, {})[score.repeat] = score.metrics
    samples = sorted(repeats)
    ordered = [[repeats[sample][i] for i in sorted(repeats[sample])] for sample in samples]
    combined = combine(ordered) if ordered else {}
    return {name: dict(zip(samples, v, strict=True)) for name, v in combined.items()}


BOUNDS = 0.0, 1.0  # of a score: arms that are both near one of them would pass whatever they do
MISS = 0.05  # chance of "equivalent" where the true difference is the margin, at most
MISSED = 0.2  # and of not saying so where there is none, with the number of samples that is asked


class ParityVerdict(StrEnum):
    """What the differences show."""

    IDENTICAL = "identical"  # as all texts are
    EQUIVALENT = "equivalent"  # within the margin
    DIFFERENT = "different"
    UNDECIDED = "undecided"  # more samples needed
    NOT_INFORMATIVE = "not informative"  # at the floor or ceiling, or all alike: it could not show


class Parity(NamedTuple):
    """SpS against ArS on one metric."""

    metric: str
    ars: float  # means over the samples that both arms have
    sps: float
    difference: Estimate  # SpS - ArS, by sample
    margin: float
    needed: int  # samples that it takes, if there is no difference
    verdict: ParityVerdict

    def __str__(self) -> str:
        """The verdict in words, with its margin or what is missing where that decided."""
        if self.verdict is ParityVerdict.IDENTICAL:
            return f"{self.verdict}, since all texts are equal"
        if self.verdict is ParityVerdict.EQUIVALENT:
            return f"{self.verdict} within {self.margin:g}"
        if self.verdict is ParityVerdict.UNDECIDED and self.difference.n < self.needed:
            return (
                f"{self.verdict} within {self.margin:g}, about {self.needed:,} samples would decide"
            )
        return str(self.verdict)


def parity(
    metric: str,
    ars: Mapping[str, float],
    sps: Mapping[str, float],
    margin: float,
    *,
    identical: bool = False,
) -> Parity | None:
    """The verdict over the samples that both arms have; None when they share none.

    Args:
        ars, sps: sample -> value, as `quality.qualities` gives them.
        margin: the largest difference that does not matter, stated before looking.
        identical: whether the texts of these samples are the same in both arms. No sample is
            needed to tell more, unless equal texts were scored unlike.

    Raises:
        ValueError: a margin that is not above 0.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}: expected more than 0")
    shared = [sample for sample in ars if sample in sps]
    if not shared:
        return None
    old, new = (np.array([arm[sample] for sample in shared]) for arm in (ars, sps))
    means = float(old.mean()), float(new.mean())
    n, differences = len(shared), new - old
    if identical and not differences.any():
        none = Estimate(0.0, 0.0, 0.0, n)
        return Parity(metric, *means, none, margin, 0, ParityVerdict.IDENTICAL)
    floor, ceiling = BOUNDS
    reach = max(ceiling - floor, float(np.abs(differences).max()))
    needed = _needed(differences / reach, margin / reach)
    difference = Estimate(float(differences.mean()), None, None, n)
    if n < FEWEST:
        return Parity(metric, *means, difference, margin, needed, ParityVerdict.UNDECIDED)
    low, high = _within(differences, reach, (1 - LEVEL) / 2)
    difference = difference._replace(low=low, high=high)

    least, greatest = _within(differences, reach, MISS)
    alike = min(old.min(), new.min()) == max(old.max(), new.max())
    if alike or max(means) <= floor + margin or min(means) >= ceiling - margin:
        verdict = ParityVerdict.NOT_INFORMATIVE
    elif n >= needed and -margin < least and greatest < margin:  # both one-sided tests
        verdict = ParityVerdict.EQUIVALENT
    elif low > 0 or high < 0:
        verdict = ParityVerdict.DIFFERENT
    else:
        verdict = ParityVerdict.UNDECIDED
    return Parity(metric, *means, difference, margin, needed, verdict)


def _within(differences: Floats, reach: float, miss: float) -> tuple[float, float]:
    """Bounds of the mean, each missed with probability `miss`."""
    return lower(differences, -reach, miss), upper(differences, reach, miss)


def _needed(differences: Floats, margin: float) -> int:
    """Samples of this spread by which equal arms are found equivalent, with chance 1 - `MISSED`.

    Never fewer than it takes where no two differ at all.
    """
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    sure = NORMAL.inv_cdf(1 - MISS) + NORMAL.inv_cdf(1 - MISSED / 2)
    return max(FEWEST, fewest(margin, MISS), math.ceil((sure * spread / margin) ** 2))


def parities(
    cells: Sequence[Cell],
    scores: Iterable[Score],
    *,
    combine: Callable[[Cell], Combine] = lambda cell: average,
    margins: Mapping[str, float] | None = None,
    identical: Container[str] = (),
) -> list[tuple[Cell, Parity]]:
    """Every drafting cell against its K = 0 cell, on the metrics that have a margin.

    Args:
        identical: ids of the cells whose texts are those of their K = 0 cell.
    """
    margins = parity_margins() if margins is None else margins
    by_cell: dict[str, list[Score]] = {}
    for score in scores:
        by_cell.setdefault(score.cell, []).append(score)
    values = {cell.id: qualities(by_cell.get(cell.id, []), combine(cell)) for cell in cells}
    found = []
    for cell in cells:
        base = baseline(cell, cells)
        if base is None or cell.k == 0:
            continue
        old, new = values[base.id], values[cell.id]
        for metric in [name for name in new if name in old and name in margins]:
            same = cell.id in identical
            verdict = parity(metric, old[metric], new[metric], margins[metric], identical=same)
            found += [] if verdict is None else [(cell, verdict)]
    return found
