"""What the page takes from the records themselves, in one pass: they stream by and are forgotten.

Times of generations for their distribution, greedy texts against ArS's, sums for paired
differences, and the few generations that can be read token by token.
"""

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from spsbench.metrics.rates import MS
from spsbench.metrics.sameness import GreedyTexts, Same
from spsbench.metrics.sums import SLOTS, Tally
from spsbench.reports.page.marks import Axes, Exhibit, Mark, Series
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record

QUANTILES = 101  # points of a distribution, where it has more generations
PROMPTS = 6  # of each task and setting that can be read in the page
OF_CATEGORY = 2  # the same of each category, where prompts have one
TOKENS = 40_000  # in the page at most, over all generations that can be read


class Gathered:
    """The records of one table.

    Args:
        cells: of the table.
        numbers: sample -> its number, shared by the tables that are to be paired.
        tokens: what may be kept for reading.
    """

    def __init__(self, cells: Iterable[Cell], numbers: dict[str, int], tokens: int) -> None:
        self.cells: Mapping[str, Cell] = {cell.id: cell for cell in cells}
        self.tallies = {
            name: Tally(SLOTS if cell.k is None else min(cell.k, SLOTS), 1)
            for name, cell in self.cells.items()
        }
        self.times: dict[str, array[float]] = {name: array("d") for name in self.cells}
        self.by_group: dict[tuple[str, str], array[float]] = {}  # the same by cell and category
        self.kept: list[Record] = []
        self.texts = 0  # that could be read
        self._numbers, self._tokens = numbers, tokens
        self._asked: dict[tuple[str, str, str], dict[str, None]] = {}
        self.greedy = GreedyTexts(self.cells.values())

    def add(self, record: Record) -> None:
        """Look at one record."""
        cell = self.cells[record.cell]
        number = self._numbers.setdefault(record.sample, len(self._numbers))
        self.tallies[cell.id].add(record, number)
        if record.error is not None:
            return
        made = sum(r.emitted for r in record.rounds)
        if made and not record.flags:
            time = MS * sum(r.seconds for r in record.rounds) / made
            self.times[cell.id].append(time)
            if record.group is not None:
                self.by_group.setdefault((cell.id, record.group), array("d")).append(time)
        self.greedy.add(record)
        if record.tokens:
            self.texts += 1
            self._keep(cell, record)

    def same(self, cell: Cell) -> Same | None:
        """How many greedy texts are those of ArS, token for token; None where none are paired."""
        return self.greedy.same(cell)

    def _keep(self, cell: Cell, record: Record) -> None:
        """The first prompts of each task and setting, under all methods."""
        most = PROMPTS if record.group is None else OF_CATEGORY
        work = str(cell.work), str(cell.sampling), record.group or ""
        asked = self._asked.setdefault(work, {})
        if record.repeat or (record.sample not in asked and len(asked) >= most):
            return
        if len(record.tokens) <= self._tokens:
            asked[record.sample] = None
            self._tokens -= len(record.tokens)
            self.kept.append(record)


def latency(times: Mapping[int, "array[float]"], names: Mapping[int, str]) -> list[Exhibit]:
    """How the time of a token varies over generations: their quantiles, by row."""
    series, counts = [], []
    for row, values in times.items():
        if len(values) < 2:
            continue
        counts.append(len(values))
        shares = np.linspace(0, 100, min(QUANTILES, len(values)))
        marks = zip(np.percentile(np.array(values), shares), shares, strict=True)
        made = tuple(Mark(row, float(ms), float(share)) for ms, share in marks)
        series.append(Series(name=names[row], marks=made, dense=True))
    if not series:
        return []
    binned = (
        f"Drawn from {QUANTILES} quantiles of each configuration's generations, not from each of "
        f"the {sum(counts):,}. "
        if max(counts) > QUANTILES
        else ""
    )
    axes = Axes(
        title="",
        x="ms a token, mean of a generation",
        y="generations that are faster, %",
        series=tuple(series),
    )
    return [
        Exhibit(
            id="latency",
            title="How the time varies",
            kind="curves",
            says="Steep is steady. Speculative sampling is faster on average, but its rounds keep "
            "now more, now fewer tokens, so its times vary more (Chen et al. 2023 warn of it for "
            "latency-critical use), and a text that ends inside a round pays for all of it: read "
            f"P50, P90 and P99, not the mean alone. {binned}",
            terms=("p50", "p90", "p99"),
            axes=(axes,),
        )
    ]


def percentiles(values: "array[float]") -> dict[str, float | None]:
    """P50, P90 from 10 generations on, P99 from 100 on: beyond them none lies."""
    at = dict(zip(("p50", "p90", "p99"), (50, 90, 99), strict=True))
    least = {"p50": 1, "p90": 10, "p99": 100}
    return {
        name: float(np.percentile(np.array(values), q)) if len(values) >= least[name] else None
        for name, q in at.items()
    }
