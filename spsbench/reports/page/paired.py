"""Runs beside each other: the same configuration, on the prompts that both runs have."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spsbench.figures.gains import gains
from spsbench.figures.intervals import PLAIN, Estimate, Floats, Jackknife
from spsbench.figures.rates import RATES
from spsbench.figures.sums import AT, Tally, numbered
from spsbench.settings.cell import Cell
from spsbench.settings.names import method, setting

Tallies = Mapping[str, tuple[Cell, Tally]]


class Pairing(NamedTuple):
    """A configuration in a later run against the first one."""

    name: str
    run: str
    shared: int  # generations, by sample and repeat, that both have timed
    faster: Estimate | None  # mean token time of the first over that of this one
    tau: Estimate | None  # difference of tau, this one less the first


def pairings(first: Tallies, runs: Sequence[tuple[str, Tallies]]) -> list[Pairing]:
    """Every configuration of the later runs that the first one has, by task, setting and method."""
    known = {_name(cell): tally for cell, tally in first.values()}
    made = []
    for run, tallies in runs:
        for cell, tally in tallies.values():
            base = known.get(_name(cell))
            if base is None or not base.keys or not tally.keys:
                continue
            gained = gains(base, tally, cell.k).speedup
            shared = len(base.keys.keys() & tally.keys.keys())
            made.append(Pairing(_name(cell), run, shared, gained, _tau(base, tally)))
    return made


def _tau(base: Tally, own: Tally) -> Estimate | None:
    keys = [key for key in own.keys if key in base.keys]
    if not keys:
        return None
    width = len(AT)
    rows = [t.rows[[t.keys[key] for key in keys], :width] for t in (own, base)]
    rate = RATES["block_efficiency"]

    def difference(sums: Floats) -> Floats:
        return rate(sums[..., :width]) - rate(sums[..., width:])

    samples = numbered([sample for sample, _ in keys])
    return Jackknife(np.hstack(rows), samples).estimate(difference, AT["rounds"], PLAIN)


def _name(cell: Cell) -> str:
    parts = str(cell.work.task or ""), setting(cell), method(cell)
    return ", ".join(part for part in parts if part)
