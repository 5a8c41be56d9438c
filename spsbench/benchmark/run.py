"""Runs: the result of a benchmark on disk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import Exit, UsageError
from spsbench.metrics.summaries import Summary
from spsbench.reports.reporter import Report, Table
from spsbench.reports.text import report_markdown
from spsbench.settings.labels import Names, method, setting


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run: its folder, figures and plot. A run stays on disk and can be resumed."""

    folder: Path
    records: int
    finished: Report | None = None  # None: stopped before its end, or not rank 0
    scored: int = Exit.OK  # exit code of `sps score`, where programs were scored

    @property
    def report(self) -> Report:
        """Return the report of a finished run; UsageError: it was stopped before its end."""
        if self.finished is None:
            raise UsageError(f"{self.folder} is not finished: expected all records. Resume it")
        return self.finished

    @property
    def tables(self) -> Sequence[Table]:
        """Return the tables of the report, one a run; UsageError: the run is not finished."""
        return self.report.tables

    @property
    def summary(self) -> list[Summary]:
        """Return one row per cell, with every figure and its interval; UsageError: unfinished."""
        return [row for table in self.tables for row in table.rows]

    @property
    def failed(self) -> int:
        """Return the number of failed generations, which no figure includes; 0 if unfinished."""
        tables = self.finished.tables if self.finished else ()
        return sum(row.failures for table in tables for row in table.rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the summary as plain values: figure `x` has its interval in `x.low` and `x.high`.

        All rows have the same keys; a figure without value is None. Times are over undisturbed
        timings; where `timed` is 0, over the `loaded` ones. UsageError: the run is not finished.
        """
        names = Names(summary.cell for summary in self.summary)
        figures = dict.fromkeys(name for summary in self.summary for name in summary.figures)
        return [_row(summary, names, figures) for summary in self.summary]

    def frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; UsageError: the run is not finished."""
        import pandas

        return pandas.DataFrame(self.rows())

    def plot(self, path: str | Path | None = None) -> bytes:
        """Return Figure 1 of the paper as PNG, and write it to `path`; UsageError: unfinished."""
        from spsbench.reports.plots import png

        image = png(self.tables[0].figure)
        if path is not None:
            Path(path).write_bytes(image)
        return image

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.records} records>"

    def __str__(self) -> str:
        return report_markdown(self.report)

    def _repr_markdown_(self) -> str:
        """Return the tables as Markdown, for notebooks."""
        return str(self)


def _row(summary: Summary, names: Names, figures: Iterable[str]) -> dict[str, Any]:
    """Return by name options and counts of a row, and NAME, NAME.low, NAME.high of `figures`."""
    cell = summary.cell
    row: dict[str, Any] = {
        "task": str(cell.task or ""),
        "target": str(cell.target),
        "draft": str(cell.draft or ""),
        "method": method(cell),
        "setting": setting(cell),
        "engine": str(cell.target.engine),
        "seed": cell.seed,
        "options": names.option_text(cell),
        "k": cell.k,
        "n": summary.n,
        "failures": summary.failures,
        "timed": summary.timed,
        "loaded": summary.loaded,
    }
    of_summary = summary.figures
    for name in figures:
        mean, low, high = (of_summary.get(name) or (None,) * 3)[:3]
        row |= {name: mean, f"{name}.low": low, f"{name}.high": high}
    return row
