"""How figures vary over seeds: the same cells and samples, drawn anew.

The interval of a row is over samples, were others asked. That over seeds is another: were the same
samples asked again. Rows that differ only in their seed give one value each; Student's interval of
their mean is as wide as so few can tell.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import LEVEL, Estimate, student
from spsbench.metrics.summary import Summary
from spsbench.settings.cell import Cell

EXACT = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}
"""Quantiles of Student's t at 97.5 % where `student`'s expansion is too rough."""


class OverSeeds(NamedTuple):
    """The rows of one cell under several seeds."""

    cell: Cell  # of the first
    seeds: list[int]
    figures: dict[str, Estimate]  # mean over seeds with its own interval; n counts seeds


def over_seeds(rows: Sequence[Summary]) -> list[OverSeeds]:
    """The cells that have rows under two seeds or more, in the order of the rows."""
    alike: dict[Cell, list[Summary]] = {}
    for row in rows:
        if row.group is None:
            alike.setdefault(row.cell.but(seed=0), []).append(row)
    found = []
    for members in alike.values():
        names = dict.fromkeys(name for row in members for name in row.figures)
        values = {
            name: [e.mean for row in members if (e := row.at_any_load(name)[0]) is not None]
            for name in names
        }
        known = {name: of_seeds(v) for name, v in values.items() if len(v) == len(members)}
        if len(members) > 1:
            seeds = [row.cell.sampling.seed for row in members]
            found.append(OverSeeds(members[0].cell, seeds, known))
    return found


def of_seeds(values: Sequence[float]) -> Estimate:
    """Their mean; an interval of two or more that differ."""
    mean, n = math.fsum(values) / len(values), len(values)
    if n < 2 or min(values) == max(values):
        return Estimate(mean, None, None, n)
    far = EXACT.get(n - 1) or student((1 + LEVEL) / 2, n - 1)
    side = far * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - side, mean + side, n)
