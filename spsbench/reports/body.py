"""Headings and lines of a table as text: measured rows, and below each the paper's own."""

from typing import NamedTuple

from spsbench.metrics.quality import PERCENT
from spsbench.metrics.summary import Summary
from spsbench.reports.columns import ABSENT, OPTIONS, Column, Show, counted, full, names
from spsbench.reports.paper import DRAFT, TARGET, PaperRow
from spsbench.reports.reporter import Table
from spsbench.settings.labels import method

WITH_LOAD = "  with those under load"


class Line(NamedTuple):
    """A row of a table."""

    names: list[str]  # other people's text: to be quoted
    figures: list[str]
    row: int  # of the table, whose it is
    paper: bool = False


def body(table: Table, show: Show = full) -> tuple[list[str], list[Line]]:
    """Headings and lines.

    Where some timings of a row were undisturbed and some under load, its figures of time are those
    of the undisturbed, and a line below has those of all.

    Names but the method and setting are left out where no two rows differ in them, for the width;
    the files for programs keep them. A row without a name, as ArS has no draft, does not differ.
    """
    named = [
        (heading, read)
        for heading, read in names(table.rows).items()
        if heading in ("method", "setting") or _tells(heading, {read(s) for s in table.rows})
    ]
    headings = [heading for heading, _ in named] + ["n"] + [c.heading for c in table.columns]
    lines = []
    for row, (s, theirs) in enumerate(zip(table.rows, table.paper, strict=True)):
        figures = [counted(s), *(c.text(s, show) for c in table.columns)]
        lines.append(Line([read(s) for _, read in named], figures, row))
        if s.timed and s.loaded:
            told = [WITH_LOAD if heading == "method" else "" for heading, _ in named]
            every = [c.with_load(s, show) for c in table.columns]
            lines.append(Line(told, [str(s.timed + s.loaded), *every], row))
        if theirs is not None:
            known = _names(theirs, s)
            shown = [_figure(theirs, c) for c in table.columns]
            told = [known.get(heading, ABSENT) for heading, _ in named]
            lines.append(Line(told, [str(theirs.sequences), *shown], row, paper=True))
    return headings, lines


def _tells(heading: str, texts: set[str]) -> bool:
    """Whether a column of names is shown; options are empty unless they differ."""
    return len(texts) > 1 if heading == OPTIONS else len(texts - {""}) > 1


def _names(theirs: PaperRow, ours: Summary) -> dict[str, str]:
    return {
        "task": theirs.task,
        "target": TARGET,
        "draft": "" if ours.cell.k == 0 else DRAFT,
        "method": f"{method(ours.cell)} (Chinchilla)",
        "setting": theirs.setting,
    }


def _figure(theirs: PaperRow, column: Column) -> str:
    values = {
        f"quality.{theirs.metric}": theirs.result * (100 if theirs.metric in PERCENT else 1),
        "mean_token_time_ms": theirs.mean_token_time_ms,
        "speedup": theirs.speedup,
    }
    value = values.get(column.figure)
    return ABSENT if value is None else f"{value:.{column.digits}f}{column.unit}"
