"""A run against an earlier one: what became better, what worse, and by how much for certain."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.pairing import Arms, paired
from spsbench.metrics.pairing import Change as Paired
from spsbench.metrics.summary import Summary
from spsbench.settings.cell import Cell

MARGINS: Mapping[str, float] = {
    "mean_token_time_ms": 0.05,
    "loop_time_ms": 0.05,
    "ttft_ms": 0.10,
    "speedup": 0.05,
    "alpha": 0.02,
    "block_efficiency": 0.02,
}
"""Changes beyond which a worse figure is a regression, as fractions of the earlier one."""

LOWER_IS_BETTER = frozenset({"mean_token_time_ms", "loop_time_ms", "ttft_ms"})


class Change(StrEnum):
    """What became of a figure."""

    EQUAL = "equal"  # every generation is as it was, to the last bit
    SAME = "same"  # the whole interval lies within the margin
    BETTER = "better"
    WORSE = "worse"  # a change for certain, but not beyond the margin
    REGRESSION = "regression"
    UNDECIDED = "undecided"


class Difference(NamedTuple):
    """One figure of one cell, then and now."""

    cell: Cell
    figure: str
    before: Estimate
    after: Estimate
    change: Estimate  # relative: 0.1 = a tenth more than before
    margin: float
    verdict: Change
    pairs: int = 0  # generations that both runs have; 0: the runs are compared as strangers


class RunComparison(NamedTuple):
    """Two runs."""

    differences: list[Difference]
    added: list[Cell]  # only in the later run
    gone: list[Cell]

    @property
    def regressions(self) -> list[Difference]:
        """Those that should fail a check."""
        return [d for d in self.differences if d.verdict is Change.REGRESSION]


def compare(
    base: Sequence[Summary],
    now: Sequence[Summary],
    margins: Mapping[str, float] = MARGINS,
    arms: tuple[Arms, Arms] | None = None,
) -> RunComparison:
    """The figures named in `margins`, for cells that both runs have.

    With the `arms` of both runs, generations of one sample and repeat are paired. Where none are,
    the intervals are those of independent runs. They hold the variation over samples; not that of a
    machine from day to day, which the margin is for.
    """
    earlier = {summary.cell.id: summary for summary in base}
    later = {summary.cell.id: summary for summary in now}
    differences = []
    for key, summary in later.items():
        for figure, margin in margins.items():
            before, after = (of and of.at_any_load(figure)[0] for of in (earlier.get(key), summary))
            found = arms and before and paired(figure, summary.cell, *arms)
            if found and before and after:
                differences.append(_paired(summary.cell, figure, before, after, found, margin))
            elif before and after and before.mean > 0 and after.mean > 0:
                differences.append(_difference(summary.cell, figure, before, after, margin))
    return RunComparison(
        differences,
        added=[s.cell for key, s in later.items() if key not in earlier],
        gone=[s.cell for key, s in earlier.items() if key not in later],
    )


def _paired(
    cell: Cell, figure: str, before: Estimate, after: Estimate, found: Paired, margin: float
) -> Difference:
    """The figures of the runs as they are, and the change over their pairs."""
    change = found.relative
    verdict = _verdict(change, margin, lower_is_better=figure in LOWER_IS_BETTER)
    verdict = Change.EQUAL if found.identical else verdict
    return Difference(cell, figure, before, after, change, margin, verdict, change.n)


def _difference(
    cell: Cell, figure: str, before: Estimate, after: Estimate, margin: float
) -> Difference:
    logarithm = math.log(after.mean / before.mean)
    bounds = _bounds(before, after)
    low = high = None
    if bounds is not None:
        low, high = (math.exp(logarithm + bound) - 1 for bound in bounds)
    change = Estimate(math.exp(logarithm) - 1, low, high, min(before.n, after.n))
    verdict = _verdict(change, margin, lower_is_better=figure in LOWER_IS_BETTER)
    return Difference(cell, figure, before, after, change, margin, verdict)


def _bounds(before: Estimate, after: Estimate) -> tuple[float, float] | None:
    """How far the log of the ratio may lie below and above: each side's errors add in squares."""
    sides = [
        (math.log(e.mean / e.low), math.log(e.high / e.mean))
        for e in (before, after)
        if e.low is not None and e.high is not None and e.low > 0
    ]
    if len(sides) < 2:
        return None
    (old_down, old_up), (down, up) = sides
    return -math.hypot(down, old_up), math.hypot(up, old_down)


def _verdict(change: Estimate, margin: float, *, lower_is_better: bool) -> Change:
    if change.low is None or change.high is None:
        return Change.UNDECIDED
    if -margin < change.low and change.high < margin:
        return Change.SAME
    if change.low <= 0 <= change.high:
        return Change.UNDECIDED
    if (change.mean < 0) == lower_is_better:
        return Change.BETTER
    return Change.REGRESSION if abs(change.mean) > margin else Change.WORSE
