"""A run's counts under another project's names, cell by cell, as its records stream by."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summary import Summary
from spsbench.metrics.terms import Counts, Dialect, counts
from spsbench.reports.columns import Column
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record

DIGITS = 3


class TermsTally:
    """Counts of each cell and of each group in it; without a dialect, none."""

    def __init__(self, cells: Iterable[Cell], dialect: Dialect | None) -> None:
        self._k = {cell.id: cell.k or 0 for cell in cells}
        self._dialect = dialect
        self._counts: dict[tuple[str, str | None], Counts] = {}

    def add(self, record: Record) -> None:
        """Count one record; a failure is in no figure."""
        if self._dialect is None or record.error is not None:
            return
        for group in (None, record.group or ""):
            self._of(record.cell, group).add(record.rounds)

    def beside(self, rows: Iterable[Summary]) -> list[Summary]:
        """The rows with the figures of the dialect."""
        return [replace(row, terms=self._figures(row)) for row in rows]

    def columns(self, rows: Iterable[Summary]) -> Sequence[Column]:
        """One for each figure of `rows`, which have them by `beside`; counts have no decimals."""
        named: dict[str, int] = {}
        for row in rows:
            for name, estimate in row.terms.items():
                whole = estimate is not None and isinstance(estimate.mean, int)
                named.setdefault(name, 0 if whole else DIGITS)
        return [Column(name, f"terms.{name}", digits) for name, digits in named.items()]

    def _figures(self, row: Summary) -> dict[str, Estimate | None]:
        if self._dialect is None:
            return {}
        known = self._of(row.cell.id, row.group)
        return {
            name: None if value is None else Estimate(value, None, None, known.generations)
            for name, value in self._dialect.figures(known).items()
        }

    def _of(self, cell: str, group: str | None) -> Counts:
        key = cell, group
        if key not in self._counts:  # a cell of another run is refused where records are summed up
            self._counts[key] = counts((), self._k.get(cell, 0))
        return self._counts[key]
