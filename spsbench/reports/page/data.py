"""The records of a page in one pass: generations to read, times, and runs in pairs by prompt."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spsbench.metrics.intervals import PLAIN, Estimate
from spsbench.metrics.parity import Parity, parities_of
from spsbench.metrics.rates import MS, RATES
from spsbench.metrics.sums import SLOTS, Tally, pair_generations
from spsbench.metrics.text_checks import compare_method_texts
from spsbench.reports.columns import ABSENT, full
from spsbench.reports.page.exhibits import LINE, exhibit
from spsbench.reports.page.token_origins import local_tokenizer, trace
from spsbench.reports.reporter import Figure, Level, Panel, Point, Table, TextTable, curves
from spsbench.reports.text import escape_piece
from spsbench.settings.cell import AUTO, Cell
from spsbench.settings.labels import Names
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record
from spsbench.store.records import is_withheld

PROMPTS = 6  # prompts shown for each task and setting
OF_CATEGORY = 2  # prompts shown for each category, if prompts have categories
TOKENS = 40_000  # upper limit over all shown generations
SHORT = 20  # characters of a run's name next to row names


class TableSums:
    """Aggregates over the records of one table with `cells`.

    `numbers` maps samples to numbers, shared by the tables that are paired; None: no pairs.
    `tokens` limits those of the shown generations.
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
        """Count a record where tables are paired; of a good one add time and, maybe, text.

        A flagged time is left out; texts are kept of the first prompts alone.
        """
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
        """Keep a record if its prompt is among the first of its work and group, by any method.

        Only first repeats are kept, and only those that have at most the tokens that are left.
        """
        most = PROMPTS if record.group is None else OF_CATEGORY
        plain = cell.auto_regressive.but(target=ModelSpec(""), decoder=AUTO, verifier=AUTO)
        work = plain, record.group
        prompts = self._prompts.setdefault(work, {})
        chosen = record.sample in prompts or len(prompts) < most
        if chosen and not record.repeat and len(record.tokens) <= self._tokens:
            prompts[record.sample] = None
            self._tokens -= len(record.tokens)
            self.kept.append(record)


def run_names(tables: Sequence[Table]) -> list[str]:
    """Return a short name of each table: its own, or a number; empty for a single one."""
    names = [escape_piece(table.title.run, LINE) for table in tables]
    if len(names) < 2:
        return [""] * len(names)
    short = len(set(names)) == len(names) and max(map(len, names)) <= SHORT
    return names if short else [f"run {number}" for number in range(1, len(names) + 1)]


def aggregate_tables(tables: Sequence[Table]) -> list[TableSums]:
    """Return sums of each table's records; several share sample numbers and divide `TOKENS`."""
    numbers: dict[str, int] | None = {} if len(tables) > 1 else None
    aggregates = []
    for table in tables:
        sums = TableSums((row.cell for row in table.rows), numbers, TOKENS // len(tables))
        for record in table.records():
            sums.add(record)
        aggregates.append(sums)
    return aggregates


def to_read(
    aggregates: Sequence[TableSums], run_names: Sequence[str]
) -> tuple[list[dict[str, Any]], str]:
    """Return the generations to show, each as `trace` does, and a sentence on which, even of none.

    Tokenizers of their targets are loaded; where one cannot be, tokens are ids.
    """
    traces: list[dict[str, Any]] = []
    tokenizers: dict[str, Any] = {}
    for sums, run in zip(aggregates, run_names, strict=True):
        names = Names(sums.cells.values())
        numbers: dict[str, int] = {}
        for record in sums.kept:
            cell = sums.cells[record.cell]
            target = cell.target
            if target.id not in tokenizers:
                tokenizers[target.id] = None if target.random else local_tokenizer(target)
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


TIMES = "Times as fast"


class PairedCells(NamedTuple):
    """A configuration of a later run compared with the first run, paired by sample and repeat."""

    name: str
    run: str
    shared: int  # generations (sample, repeat) timed in both runs
    differences: Mapping[str, Estimate]  # ratio of token times; tau and scores, this run less first
    quality: Sequence[Parity] = ()  # `ars` is the first run, `sps` this run


def paired_runs(
    tables: Sequence[Table], aggregates: Sequence[TableSums], run_names: Sequence[str]
) -> list[PairedCells]:
    """Compare the cells of later tables with those of the same task and names in the first.

    A cell that the first lacks, or of which a table has no good generation, is left out.
    """
    names = [Names(sums.cells.values()) for sums in aggregates]
    bases = {
        (cell.task, names[0].full(cell)): cell
        for sums in aggregates[:1]
        for cell in sums.cells.values()
    }
    pairs = []
    for table, sums, labels, run in [*zip(tables, aggregates, names, run_names, strict=True)][1:]:
        for cell in sums.cells.values():
            name = labels.full(cell)
            if (base := bases.get((cell.task, name))) is None:
                continue
            before, after = aggregates[0].tallies[base.id], sums.tallies[cell.id]
            if before.keys and after.keys:
                shared = len(before.keys.keys() & after.keys.keys())
                texts = compare_method_texts(table.greedy.of(cell.id), tables[0].greedy.of(base.id))
                quality = parities_of(
                    tables[0].qualities.get(base.id, {}),
                    table.qualities.get(cell.id, {}),
                    identical=texts is not None and texts.all,
                )
                differences = _differences(before, after, quality)
                pairs.append(PairedCells(name, run, shared, differences, quality))
    return pairs


def _differences(before: Tally, after: Tally, quality: Iterable[Parity]) -> dict[str, Estimate]:
    """Return title -> estimate: token time before / after, tau and scores after less before.

    A figure that no pair of generations has is left out.
    """
    token_time, tau = RATES["mean_token_time_ms"], RATES["block_efficiency"]
    differences: dict[str, Estimate | None] = {}
    if timed := pair_generations((before, after), "started"):
        differences[TIMES] = timed.estimate(
            lambda old, new: token_time(old) / token_time(new), "started"
        )
    if counted := pair_generations((before, after), "rounds"):
        differences["tau, difference"] = counted.estimate(
            lambda old, new: tau(new) - tau(old), "rounds", PLAIN
        )
    differences |= {f"{test.metric}, difference": test.shown for test in quality}
    return {title: estimate for title, estimate in differences.items() if estimate is not None}


def run_differences(pairs: Sequence[PairedCells], base: str) -> tuple[Figure | None, TextTable]:
    """Return runs' differences from the first, `base`: a plot (None without any) and a table."""
    titles = list(dict.fromkeys(title for pair in pairs for title in pair.differences))
    names = [f"{pair.name}, {pair.run}" for pair in pairs]
    panels, rows = [], []
    for title in titles:
        values = (Point.of(at, pair.differences.get(title)) for at, pair in enumerate(pairs))
        none = Level(name="no difference", y=1.0 if title == TIMES else 0.0)
        (curve,) = curves([("difference", values)])
        panels.append(Panel(title=title, x="", items=[none, curve], rows=names))
    for pair in pairs:
        estimates = [(title, pair.differences.get(title)) for title in titles]
        cells = [
            ABSENT if estimate is None else full(estimate, 3, "x" if title == TIMES else "")
            for title, estimate in estimates
        ]
        verdicts = "; ".join(f"{test.metric} {test}" for test in pair.quality)
        rows.append([pair.name, pair.run, str(pair.shared), *cells, verdicts])
    headings = ("configuration", "run", "pairs", *titles, "quality")
    table = TextTable("Paired differences", headings, rows, names=2)
    return exhibit("runs", panels, base=base), table
