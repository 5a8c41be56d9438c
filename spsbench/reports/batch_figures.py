"""Figures of a run in batches: the gain by the texts of a batch, where it ends, what it costs.

B* is the largest batch in which some method is faster than plain sampling in the same batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.reports.columns import ABSENT, MARK, Column, full
from spsbench.reports.reporter import Curve, Level, Panel, Point, Table, TextTable, curves
from spsbench.settings.cell import Cell
from spsbench.settings.labels import Names

HEADINGS: Mapping[str, str] = {  # with what they say
    "method": "",
    "batch": "",
    "speed-up": "",
    "machine tokens/s": "",
    "user tokens/s": "User: tokens a second of one text, without its prefill.",
    "empty rows": "Empty rows: share of the machine's time.",
    "tau": "",
}
BY_BATCH = "Speed-up by batch"


def with_batch_figures(table: Table, rows: Sequence[Summary], *, predicted: bool = False) -> Table:
    """Return `table` with figures of `rows` by batch; itself where no batch is above 1.

    Every task and setting, those without batches too, has remarks and a table of text; two panels
    show all. `predicted`: they are a plan's.
    """
    if not any(row.cell.batch > 1 for row in rows):
        return table
    rows_by_work = by_work(sorted(rows, key=lambda row: row.cell.batch))
    says = [
        f"{name}: {line}" if len(rows_by_work) > 1 else line
        for name, work_rows in rows_by_work.items()
        for line in remarks(work_rows)
    ]
    return replace(
        table,
        remarks=[*table.remarks, *says],
        figure=replace(table.figure, panels=(*table.figure.panels, *panels(rows))),
        further=[
            *table.further,
            *(text_table(name, work_rows, predicted) for name, work_rows in rows_by_work.items()),
        ],
    )


def by_work(rows: Iterable[Summary]) -> dict[str, list[Summary]]:
    """Return task and setting in words -> its rows, whatever their batch."""
    rows = list(rows)
    names = Names(_alone(row.cell) for row in rows)
    return group_by(rows, lambda row: names.work(_alone(row.cell)))


def lines_by_batch(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Return method -> rows of one work by batch, ArS too; continuous apart if both exist."""
    both = len({row.cell.continuous for row in rows if row.cell.batch > 1}) > 1
    names = Names(_alone(row.cell) for row in rows)

    def method(row: Summary) -> str:
        return names.how(_alone(row.cell)) + ", continuous" * (both and row.cell.continuous)

    return group_by(sorted(rows, key=lambda row: (row.cell.continuous, row.cell.batch)), method)


def envelope(rows: Sequence[Summary]) -> dict[int, tuple[Summary | None, Estimate]]:
    """Return batch, rising -> its best row and speed-up; (None, 1) where no mean is above 1.

    Rows of ArS and those without a decided speed-up are left out, and batches of only such rows.
    """
    best_by_batch: dict[int, tuple[Summary | None, Estimate]] = {}
    for row in rows:
        gained, size = row.speedup, row.cell.batch
        if gained is None or gained.undecided or row.cell.k == 0:
            continue
        best = best_by_batch.setdefault(size, (None, Estimate(1.0, None, None, gained.n)))
        if gained.mean > best[1].mean:
            best_by_batch[size] = row, gained
    return dict(sorted(best_by_batch.items()))


def remarks(rows: Sequence[Summary]) -> list[str]:
    """Return sentences on one work: best speed-ups, the end of the gain, tau that differs."""
    best, sentences = envelope(rows), []
    gains = [size for size, (row, _) in best.items() if row is not None]
    if best:
        speedups = ", ".join(f"{gained.mean:.2f}x at {size}" for size, (_, gained) in best.items())
        end = "No batch gains." if not gains else f"The gain ends after B* = {gains[-1]} texts."
        if gains and gains[-1] == max(best):
            end = f"The gain lasts to the largest batch, {gains[-1]}."
        sentences.append(
            f"The best method by batch, over plain sampling in the same: {speedups}. {end}"
        )
    for name, method_rows in lines_by_batch(rows).items():
        taus = [
            row.block_efficiency for row in method_rows if row.cell.k != 0 and row.block_efficiency
        ]
        if len(taus) > 1 and (apart := _apart(taus)):
            sentences.append(
                f"tau of {name} depends on the batch ({apart}): texts were not the same in each."
            )
    return sentences


def text_table(title: str, rows: Sequence[Summary], predicted: bool) -> TextTable:
    """Return a table of a row for each method and batch, without columns that no row has.

    Its remark explains the columns, and says if they were predicted.
    """
    text_rows = []
    for name, method_rows in lines_by_batch(rows).items():
        for row in method_rows:
            ms = row.mean_token_time_ms
            text_rows.append(
                [
                    name,
                    str(row.cell.batch),
                    _figure(row, "speedup", 2, "x"),
                    _figure(row, "machine_tokens_per_s", 1),
                    ABSENT if ms is None else f"{1e3 / ms.mean:.1f}{MARK * ms.loaded}",
                    _figure(row, "empty_rows", 3),
                    _figure(row, "block_efficiency", 2),
                ]
            )
    has = [i for i in range(len(HEADINGS)) if any(cells[i] != ABSENT for cells in text_rows)]
    headings = [[*HEADINGS][i] for i in has]
    source = "Predicted from the costs of common rounds. " * predicted
    notes = source + " ".join(filter(None, map(HEADINGS.__getitem__, headings)))
    text_rows = [[cells[i] for i in has] for cells in text_rows]
    return TextTable(f"By batch: {title}", headings, text_rows, (notes,), names=2)


def panels(rows: Sequence[Summary]) -> tuple[Panel, ...]:
    """Return two panels: speed-up by batch with its envelope; the machine's tokens/s by users'."""
    gains: list[Curve | Level] = []
    pareto: list[Curve] = []
    works, line = by_work(rows), 0
    for work, of_work in works.items():
        prefix = f"{work}, " if len(works) > 1 else ""
        for name, method_rows in lines_by_batch(of_work).items():
            if method_rows[0].cell.k != 0:
                points = (Point.of(row.cell.batch, row.speedup) for row in method_rows)
                gains += curves([(prefix + name, points)], line)
            both = (
                Point(1e3 / ms.mean, machine.mean)
                for row in method_rows
                if (ms := row.mean_token_time_ms)
                and (machine := row.figures.get("machine_tokens_per_s"))
            )
            pareto += curves([(prefix + name, both)], line)
            line += 1
        best = (Point(size, gained.mean) for size, (_, gained) in envelope(of_work).items())
        highest = curves([(f"{prefix}the best K, 0 among them", best)], line)
        gains += highest
        line += len(highest)
    gains.append(Level(name="no gain", y=1.0))
    over, x, y = "over ArS in the same batch", "tokens/s of a user", "tokens/s of the machine"
    return (
        Panel(title=BY_BATCH, x="texts at a time", y=over, items=gains, whole=True),
        Panel(title="Machine against user", x=x, y=y, items=pareto),
    )


def batch_panels(table: Table) -> Sequence[Panel]:
    """Return the panels by batch of a table, the last of its figure; [] without batches."""
    titles = [panel.title for panel in table.figure.panels]
    return table.figure.panels[titles.index(BY_BATCH) :] if table.further else []


def _alone(cell: Cell) -> Cell:
    return cell.but(batch=1, continuous=False)


def _figure(row: Summary, name: str, digits: int, unit: str = "") -> str:
    return Column(name, name, digits, unit).text(row, full)


def _apart(taus: Sequence[Estimate]) -> str:
    """Return the least and the greatest of figures whose intervals exclude each other, or ''."""
    low = min(taus, key=lambda tau: tau.mean)
    high = max(taus, key=lambda tau: tau.mean)
    if low.high is None or high.low is None or low.high >= high.low:
        return ""
    return f"{low.mean:.2f} to {high.mean:.2f}"
