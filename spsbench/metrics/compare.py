"""Comparison of runs: a run against an earlier run, and one run over several seeds.

Generations of the same sample and repeat are paired where both runs have them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Estimate, Floats, around_mean
from spsbench.metrics.rates import RATES, baseline
from spsbench.metrics.summaries import Summary, tallies, tally_of
from spsbench.metrics.sums import AT, Tally, pair_generations
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record


class RunTallies(NamedTuple):
    """Tallies of a run by cell, with the same sample numbers in both runs."""

    cells: Sequence[Cell]
    tallies: Mapping[str, Tally]

    def of(self, cell: Cell, *, speedup: bool) -> list[Tally]:
        """Return [the cell's tally]; of a speed-up [its baseline's, the cell's], [] without one."""
        tally = self.tallies[cell.id]
        if not speedup:
            return [tally]
        base = baseline(cell, self.cells)
        return [] if base is None else [self.tallies[base.id], tally]


def tally_run(
    cells: Sequence[Cell], records: Iterable[Record], numbers: dict[str, int]
) -> RunTallies:
    """Tally a run's records; adds new samples to `numbers`. ValueError: one of another cell."""
    by_cell = tallies(cells)
    for record in records:
        tally_of(record.cell, by_cell).add(record, numbers.setdefault(record.sample, len(numbers)))
    return RunTallies(cells, by_cell)


def paired_change(
    figure: str, cell: Cell, before: RunTallies, after: RunTallies
) -> tuple[Estimate, bool] | None:
    """Return after / before - 1 of a figure over the generations that both runs have of a cell.

    `figure` is a name of `RATES`, or `speedup`. Second: whether all sums behind it are
    bit-identical; the change is then exactly 0. None: no generation is shared, the ratio is not
    finite, or a speed-up has no baseline.
    """
    speedup = figure == "speedup"
    of_runs = [*before.of(cell, speedup=speedup), *after.of(cell, speedup=speedup)]
    if len(of_runs) != (4 if speedup else 2):
        return None
    rate = RATES["mean_token_time_ms" if speedup else figure]
    if (pairs := pair_generations(of_runs, rate.denominator)) is None:
        return None

    def ratio(*sides: Floats) -> Floats:
        *bases, old, new = (rate(sides[i]) for i in ((0, 2, 1, 3) if speedup else (0, 1)))
        return old / new * bases[1] / bases[0] if speedup else new / old

    used, half = [AT[rate.numerator], AT[rate.denominator]], len(of_runs) // 2
    same = all(
        np.array_equal(then[:, used], now[:, used])
        for then, now in zip(pairs.sides[:half], pairs.sides[half:], strict=True)
    )
    count = len(pairs.sides[0])
    change = pairs.estimate(ratio, rate.denominator)
    if same:
        change = Estimate(1.0, 1.0, 1.0, count)
    if change is None:
        return None
    low, high = (None if end is None else end - 1 for end in (change.low, change.high))
    return Estimate(change.mean - 1, low, high, count), same


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
    """The kind of change of a figure."""

    EQUAL = "equal"  # all generations are bit-identical
    SAME = "same"  # the whole interval is within the margin
    BETTER = "better"
    WORSE = "worse"  # a significant change, but within the margin
    REGRESSION = "regression"
    UNDECIDED = "undecided"


class Difference(NamedTuple):
    """The change of one figure of one cell."""

    cell: Cell
    figure: str
    before: Estimate
    after: Estimate
    change: Estimate  # relative: 0.1 = a tenth more than before
    margin: float
    verdict: Change
    pairs: int  # generations that both runs have; 0: an unpaired comparison


class RunComparison(NamedTuple):
    """The comparison of two runs."""

    differences: list[Difference]
    added: list[Cell]  # only in the later run
    gone: list[Cell]

    @property
    def regressions(self) -> list[Difference]:
        """Return the differences that should fail a check."""
        return [d for d in self.differences if d.verdict is Change.REGRESSION]


def compare_runs(
    base: Sequence[Summary],
    now: Sequence[Summary],
    margins: Mapping[str, float] = MARGINS,
    runs: tuple[RunTallies, RunTallies] | None = None,
) -> RunComparison:
    """Compare figures of cells that both runs have; `margins`: a figure of `MARGINS` -> fraction.

    With the tallies of both `runs`, generations of one sample and repeat are paired. Without, or
    where they share none, runs count as independent, and values of 0 are not compared. A figure
    that a run lacks is left out. Intervals cover the variation over samples, the margin that of a
    machine from day to day. Cells of one run alone are `added` or `gone`.
    """
    earlier = {summary.cell.id: summary for summary in base}
    later = {summary.cell.id: summary for summary in now}
    differences = []
    for key, summary in later.items():
        for figure, margin in margins.items():
            before, after = (of and of.figures.get(figure) for of in (earlier.get(key), summary))
            if not (before and after):
                continue
            pairs = runs and paired_change(figure, summary.cell, *runs)
            if not pairs and min(before.mean, after.mean) <= 0:
                continue
            change, same = pairs or (_unpaired_change(before, after), False)
            verdict = _verdict(change, margin, lower_is_better=figure in LOWER_IS_BETTER)
            verdict = Change.EQUAL if same else verdict
            values = summary.cell, figure, before, after, change, margin, verdict
            differences.append(Difference(*values, change.n if pairs else 0))
    return RunComparison(
        differences,
        added=[s.cell for key, s in later.items() if key not in earlier],
        gone=[s.cell for key, s in earlier.items() if key not in later],
    )


def _unpaired_change(before: Estimate, after: Estimate) -> Estimate:
    """Return after / before - 1 of unpaired means above 0, n the least; interval if lows > 0."""
    ratio, n = after.mean / before.mean, min(before.n, after.n)
    sides = [
        (math.log(e.mean / e.low), math.log(e.high / e.mean))
        for e in (before, after)
        if e.low is not None and e.high is not None and e.low > 0
    ]
    if len(sides) < 2:
        return Estimate(ratio - 1, None, None, n)
    (old_down, old_up), (down, up) = sides
    low, high = -math.hypot(down, old_up), math.hypot(up, old_down)  # log errors add in squares
    return Estimate(ratio - 1, ratio * math.exp(low) - 1, ratio * math.exp(high) - 1, n)


def _verdict(change: Estimate, margin: float, *, lower_is_better: bool) -> Change:
    """Return SAME for an interval within the margin, UNDECIDED for none, or for one that has 0.

    Else BETTER, WORSE, or REGRESSION where the mean is worse by more than the margin.
    """
    if change.low is None or change.high is None:
        return Change.UNDECIDED
    if -margin < change.low and change.high < margin:
        return Change.SAME
    if change.low <= 0 <= change.high:
        return Change.UNDECIDED
    if (change.mean < 0) == lower_is_better:
        return Change.BETTER
    return Change.REGRESSION if abs(change.mean) > margin else Change.WORSE


class OverSeeds(NamedTuple):
    """The figures of one cell under several seeds."""

    cell: Cell  # the one of the first seed
    seeds: list[int]
    figures: dict[str, Estimate]  # mean over seeds with an interval over seeds; n counts seeds


def over_seeds(rows: Sequence[Summary]) -> list[OverSeeds]:
    """Return cells that differ in the seed alone, two or more, with figures that all of them have.

    A figure is the mean of theirs with Student's interval. Rows of groups are left out.
    """
    alike: dict[Cell, list[Summary]] = {}
    for row in rows:
        if row.group is None:
            alike.setdefault(row.cell.but(seed=0), []).append(row)
    compared = []
    for members in alike.values():
        names = dict.fromkeys(name for row in members for name in row.figures)
        values = {
            name: [e.mean for row in members if (e := row.figures.get(name)) is not None]
            for name in names
        }
        figures = {name: around_mean(v) for name, v in values.items() if len(v) == len(members)}
        if len(members) > 1:
            seeds = [row.cell.seed for row in members]
            compared.append(OverSeeds(members[0].cell, seeds, figures))
    return compared
