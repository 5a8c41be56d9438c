"""The records of a page: generations to read, times, and pairs of runs, in one pass."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spsbench.metrics.rates import MS
from spsbench.metrics.sums import SLOTS, Tally
from spsbench.reports.page.escape import shown
from spsbench.reports.page.pairs import Pairing, Side, pairings
from spsbench.reports.page.token_origins import Trace, tokenizer_of, trace
from spsbench.reports.reporter import Table
from spsbench.settings.cell import AUTO, Cell
from spsbench.settings.labels import Names
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record
from spsbench.store.records import is_withheld

PROMPTS = 6  # prompts shown for each task and setting
OF_CATEGORY = 2  # prompts shown for each category, if prompts have categories
TOKENS = 40_000  # upper limit over all shown generations
LINE = 240  # characters of a name
SHORT = 20  # characters of a run's name next to row names


class TableSums:
    """Aggregates over the records of one table.

    Args:
        cells: cells of the table.
        numbers: sample -> number, shared by the tables that are paired; None: no pairs.
        tokens: limit on the tokens of shown generations.
    """

    def __init__(self, cells: Iterable[Cell], numbers: dict[str, int] | None, tokens: int) -> None:
        self.cells: Mapping[str, Cell] = {cell.id: cell for cell in cells}
        self.tallies = {
            name: Tally(SLOTS if cell.k is None else min(cell.k, SLOTS), 1)
            for name, cell in self.cells.items()
        }
        self.times: dict[str, array[float]] = {name: array("d") for name in self.cells}
        self.kept: list[Record] = []
        self.texts = 0  # number of generations that could be shown
        self._numbers, self._tokens = numbers, tokens
        self._prompts: dict[tuple[Cell, str | None], dict[str, None]] = {}

    def add(self, record: Record) -> None:
        """Aggregate one record."""
        cell = self.cells[record.cell]
        if self._numbers is not None:
            number = self._numbers.setdefault(record.sample, len(self._numbers))
            self.tallies[cell.id].add(record, number)
        if record.error is not None:
            return
        tokens = sum(r.emitted for r in record.rounds)
        if tokens and not record.flags:
            self.times[cell.id].append(MS * sum(r.seconds for r in record.rounds) / tokens)
        if (record.tokens or record.text) and not is_withheld(record):
            self.texts += 1
            self._keep(cell, record)

    def _keep(self, cell: Cell, record: Record) -> None:
        """Keep the first prompts of each task and setting, under all methods."""
        most = PROMPTS if record.group is None else OF_CATEGORY
        work = cell.auto_regressive.but(target=ModelSpec(""), decoder=AUTO), record.group
        prompts = self._prompts.setdefault(work, {})
        chosen = record.sample in prompts or len(prompts) < most
        if chosen and not record.repeat and len(record.tokens) <= self._tokens:
            prompts[record.sample] = None
            self._tokens -= len(record.tokens)
            self.kept.append(record)


def run_names(tables: Sequence[Table]) -> list[str]:
    """Return a short name of each table: its own, or a number; empty for a single one."""
    names = [shown(table.title.run, LINE) for table in tables]
    if len(names) < 2:
        return [""] * len(names)
    short = len(set(names)) == len(names) and max(map(len, names)) <= SHORT
    return names if short else [f"run {number}" for number in range(1, len(names) + 1)]


def aggregated(tables: Sequence[Table]) -> list[TableSums]:
    """Return the aggregates of each table, with samples numbered alike."""
    numbers: dict[str, int] | None = {} if len(tables) > 1 else None
    aggregates = []
    for table in tables:
        sums = TableSums((row.cell for row in table.rows), numbers, TOKENS // len(tables))
        for record in table.records():
            sums.add(record)
        aggregates.append(sums)
    return aggregates


def paired_runs(
    tables: Sequence[Table], aggregates: Sequence[TableSums], names: Sequence[str]
) -> list[Pairing]:
    """Return the configurations of later tables compared with those of the first."""
    sides = [
        Side(
            name,
            {cell: (sums.cells[cell], tally) for cell, tally in sums.tallies.items()},
            table.qualities,
            {cell: table.greedy.of(cell) for cell in sums.cells},
        )
        for table, sums, name in zip(tables, aggregates, names, strict=True)
    ]
    return pairings(sides[0], sides[1:]) if len(sides) > 1 else []


def to_read(aggregates: Sequence[TableSums], run_names: Sequence[str]) -> tuple[list[Trace], str]:
    """Return the generations to show, and a sentence about their selection."""
    traces: list[Trace] = []
    tokenizers: dict[str, Any] = {}
    for sums, run in zip(aggregates, run_names, strict=True):
        names = Names(sums.cells.values())
        numbers: dict[str, int] = {}
        for record in sums.kept:
            cell = sums.cells[record.cell]
            target = cell.target
            if target.id not in tokenizers:
                tokenizers[target.id] = None if target.random else tokenizer_of(target)
            number = numbers.setdefault(record.sample, len(numbers) + 1)
            traces.append(
                trace(
                    record,
                    name=names.how(cell),
                    group=", ".join(filter(None, (run, names.work(cell), f"prompt {number}"))),
                    tokenizer=tokenizers[target.id],
                )
            )
    texts = sum(sums.texts for sums in aggregates)
    note = f"{len(traces):,} of {texts:,} generations can be read here"
    if len(traces) < texts:
        note += f": the first {PROMPTS} prompts of each task and setting, one text each"
        if any(record.group is not None for sums in aggregates for record in sums.kept):
            note += f", or {OF_CATEGORY} of each category"
    return traces, f"{note}."
