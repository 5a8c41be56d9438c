"""Is the quality of SpS that of ArS? Paired differences, and a test that can say yes (TOST).

That no difference was found never shows that there is none: two one-sided tests (Schuirmann 1987)
against a margin stated beforehand do. Pairing by sample takes the samples' own difficulty out
(Miller 2024, arXiv 2411.00640).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from spsbench.figures.gains import baseline
from spsbench.figures.intervals import Estimate
from spsbench.figures.quality import Combine, average, qualities
from spsbench.settings.cell import Cell
from spsbench.settings.records import Score

MARGINS: Mapping[str, float] = {"rouge2": 0.003, "pass@1": 0.012}
"""What counts as no difference, on the scale 0 .. 1; about three standard errors of the full tasks:
11,305 XSum documents, and 100 answers to each of HumanEval's 164 problems."""

FEWEST = 6  # samples; below, the expansion of Student's quantile and the test itself are void


class Verdict(StrEnum):
    """What the differences show."""

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
    verdict: Verdict

    def __str__(self) -> str:
        """The verdict in words, with its margin where that was decided on."""
        decided = self.verdict is Verdict.EQUIVALENT
        return f"{self.verdict} within {self.margin:g}" if decided else str(self.verdict)


def parity(
    metric: str,
    ars: Mapping[str, float],
    sps: Mapping[str, float],
    margin: float,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Parity | None:
    """The verdict over the samples that both arms have; None when they share none.

    Args:
        ars, sps: sample -> value, as `quality.qualities` gives them.
        margin: the largest difference that does not matter, stated before looking.
        bounds: least and greatest possible value; both arms within `margin` of one of them would
            pass as equal whatever they do.

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
    n, mean = len(shared), float((new - old).mean())
    if n < FEWEST:
        difference = Estimate(mean, None, None, n)
        return Parity(metric, *means, difference, margin, Verdict.UNDECIDED)
    error = float((new - old).std(ddof=1)) / math.sqrt(n)
    wide, narrow = (student(p, n - 1) * error for p in (0.975, 0.95))
    difference = Estimate(mean, mean - wide, mean + wide, n)

    floor, ceiling = bounds
    alike = min(old.min(), new.min()) == max(old.max(), new.max())
    if alike or max(means) <= floor + margin or min(means) >= ceiling - margin:
        verdict = Verdict.NOT_INFORMATIVE
    elif abs(mean) + narrow < margin:  # both one-sided tests at 5 %: the 90 % interval is inside
        verdict = Verdict.EQUIVALENT
    elif abs(mean) > wide:
        verdict = Verdict.DIFFERENT
    else:
        verdict = Verdict.UNDECIDED
    return Parity(metric, *means, difference, margin, verdict)


def parities(
    cells: Sequence[Cell],
    scores: Iterable[Score],
    *,
    combine: Callable[[Cell], Combine] = lambda cell: average,
    margins: Mapping[str, float] = MARGINS,
) -> list[tuple[Cell, Parity]]:
    """Every drafting cell against its K = 0 cell, on the metrics that have a margin."""
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
            verdict = parity(metric, old[metric], new[metric], margins[metric])
            found += [] if verdict is None else [(cell, verdict)]
    return found


def student(p: float, df: int) -> float:
    """Quantile of Student's t by its expansion in 1 / df (Abramowitz and Stegun 26.7.5).

    Off by less than 0.002 from df = 5 on.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / df**i for i, term in enumerate(terms, start=1)))
