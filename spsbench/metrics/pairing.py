"""Two runs of one configuration, generation by generation: what changed, by the samples of both."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spsbench.metrics.gains import baseline
from spsbench.metrics.intervals import POSITIVE, Estimate, Floats, Jackknife
from spsbench.metrics.rates import RATES
from spsbench.metrics.sums import AT, Tally, numbered, quietly
from spsbench.settings.cell import Cell

WIDTH = len(AT)


class Change(NamedTuple):
    """A figure then and now, over the generations that both runs have."""

    before: float
    after: float
    relative: Estimate  # after / before - 1; its n counts pairs
    identical: bool  # every one of them is as it was, to the last bit


class Arms(NamedTuple):
    """The tallies of a run by cell, samples numbered alike in both runs."""

    cells: Sequence[Cell]
    tallies: Mapping[str, Tally]

    def of(self, cell: Cell, *, speedup: bool) -> list[Tally]:
        """What a figure of the cell stands on: for a speed-up its baseline as well."""
        own = self.tallies[cell.id]
        if not speedup:
            return [own]
        base = baseline(cell, self.cells)
        return [] if base is None else [self.tallies[base.id], own]


def paired(figure: str, cell: Cell, before: Arms, after: Arms) -> Change | None:
    """What became of a figure of `cell`; None where the runs share nothing that has it.

    Undisturbed timings are taken where both runs have some, else all of them.
    """
    speedup = figure == "speedup"
    arms = [*before.of(cell, speedup=speedup), *after.of(cell, speedup=speedup)]
    if len(arms) != (4 if speedup else 2):
        return None
    rate = RATES["mean_token_time_ms" if speedup else figure]
    counted = AT[rate.denominator]
    for only_quiet in (True, False):
        rows = [quietly(arm.rows) if only_quiet else arm.rows for arm in arms]
        shared = [
            key
            for key in arms[0].keys
            if all(
                key in arm.keys and row[arm.keys[key], counted] > 0
                for arm, row in zip(arms, rows, strict=True)
            )
        ]
        if shared:
            break
    else:
        return None
    sides = [
        row[[arm.keys[key] for key in shared], :WIDTH] for arm, row in zip(arms, rows, strict=True)
    ]
    half = len(sides) // 2

    def value(sums: Floats, first: int) -> Floats:
        own = rate(sums[..., (first + half - 1) * WIDTH : (first + half) * WIDTH])
        base = rate(sums[..., first * WIDTH : (first + 1) * WIDTH])
        return base / own if speedup else own

    def ratio(sums: Floats) -> Floats:
        return value(sums, half) / value(sums, 0)

    joined = np.hstack(sides)
    total = joined.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        old, new = float(value(total, 0)), float(value(total, half))
    used = [AT[rate.numerator], AT[rate.denominator]]
    old_sides, new_sides = sides[:half], sides[half:]
    same = all(
        np.array_equal(then[:, used], now[:, used])
        for then, now in zip(old_sides, new_sides, strict=True)
    )
    samples = numbered([sample for sample, _ in shared])
    found = Jackknife(joined, samples).estimate(ratio, counted, POSITIVE)
    if same:
        found = Estimate(1.0, 1.0, 1.0, len(shared))
    if found is None:
        return None
    low, high = (None if end is None else end - 1 for end in (found.low, found.high))
    return Change(old, new, Estimate(found.mean - 1, low, high, len(shared)), same)
