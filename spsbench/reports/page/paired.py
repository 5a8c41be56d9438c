"""Runs beside each other: the same configuration, on the prompts that both runs have."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spsbench.metrics.gains import gains
from spsbench.metrics.intervals import PLAIN, Estimate, Floats, Jackknife
from spsbench.metrics.parity import MARGINS, Parity, parity
from spsbench.metrics.quality import Qualities
from spsbench.metrics.rates import RATES
from spsbench.metrics.sameness import Texts, identical
from spsbench.metrics.sums import AT, Tally, numbered
from spsbench.reports.page.marks import Axes, Exhibit, Mark, Series, exhibit
from spsbench.reports.quoting import visible
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names


class Side(NamedTuple):
    """A run, by cell."""

    name: str
    tallies: Mapping[str, tuple[Cell, Tally]]
    qualities: Mapping[str, Qualities] = {}  # on the scale 0 .. 1
    greedy: Mapping[str, Texts] = {}


class Pairing(NamedTuple):
    """A configuration in a later run against the first one."""

    name: str
    run: str
    cell: str  # of the later run
    shared: int  # generations, by sample and repeat, that both have timed
    faster: Estimate | None  # mean token time of the first over that of this one
    tau: Estimate | None  # difference of tau, this one less the first
    quality: tuple[Parity, ...] = ()  # `ars` is the first run, `sps` this one


def pairings(first: Side, runs: Sequence[Side]) -> list[Pairing]:
    """Every configuration of the later runs that the first one has, by the names it has there."""
    keys = Names(cell for cell, _ in first.tallies.values())
    known = {
        (cell.work.task, keys.full(cell)): (cell, tally) for cell, tally in first.tallies.values()
    }
    made = []
    for run in runs:
        names = Names(cell for cell, _ in run.tallies.values())
        for cell, tally in run.tallies.values():
            before, base = known.get((cell.work.task, keys.full(cell)), (cell, None))
            if base is None or not base.keys or not tally.keys:
                continue
            gained = gains(base, tally, cell.k).speedup
            shared = len(base.keys.keys() & tally.keys.keys())
            theirs, ours = first.qualities.get(before.id, {}), run.qualities.get(cell.id, {})
            same = identical(run.greedy.get(cell.id, {}), first.greedy.get(before.id, {}))
            quality = tuple(_quality(theirs, ours, same))
            tau = _tau(base, tally)
            name = names.full(cell)
            made.append(Pairing(name, run.name, cell.id, shared, gained, tau, quality))
    return made


def beside(found: Sequence[tuple[Pairing, int]]) -> list[Exhibit]:
    """The differences drawn, one line a configuration, each with its row."""
    values: dict[str, list[Mark]] = {}
    for each, row in found:
        told = {"Times as fast": each.faster, "tau, difference": each.tau}
        told |= {f"{visible(p.metric)}, difference": p.difference for p in each.quality}
        for title, e in told.items():
            if e is not None:
                values.setdefault(title, []).append(Mark(row, row, e.mean, e.low, e.high))
    axes = [
        Axes(
            title=title,
            x=title,
            series=(Series(name=title, marks=tuple(marks)),),
            one=title == "Times as fast",
            zero=title != "Times as fast",
            unit="x" if title == "Times as fast" else "",
            digits=3 if title != "Times as fast" else 2,
        )
        for title, marks in values.items()
    ]
    return exhibit(
        axes,
        id="beside",
        title="Differences between runs",
        kind="forest",
        says="Each configuration against the first run's, paired by prompt and repeat, so that the "
        "prompts' own difficulty is out. An interval that crosses the dashed line tells no "
        "difference. Intervals are over prompts; they do not hold how a machine varies from day to "
        "day.",
        terms=("mean_token_time_ms", "block_efficiency", "quality"),
    )


def _quality(base: Qualities, own: Qualities, same: bool) -> list[Parity]:
    found = [
        parity(metric, base[metric], own[metric], MARGINS[metric], identical=same)
        for metric in own
        if metric in base and metric in MARGINS
    ]
    return [each for each in found if each is not None]


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
