"""A table for a terminal."""

from collections.abc import Sequence
from io import StringIO

from spsbench.reports.columns import brief
from spsbench.reports.columns import table as cells
from spsbench.reports.quoting import visible
from spsbench.reports.reporter import Title, remarks
from spsbench.summary import Summary

WIDTH = 160


def table(rows: Sequence[Summary], title: Title) -> bytes:
    """UTF-8 text of at most 160 columns, without colours; ± is the longer side of an interval."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, lines = cells(rows, brief)
    names = len(lines[0][0]) if lines else len(headings)
    grid = Table(title=Text(visible(f"{title.run}: {title.task}" if title.task else title.run)))
    for i, heading in enumerate(headings):  # Text throughout: markup in names stays text
        grid.add_column(Text(visible(heading)), justify="left" if i < names else "right")
    for named, figures in lines:
        grid.add_row(*(Text(visible(cell)) for cell in named + figures))

    file = StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(grid)
    for line in remarks(rows, title):
        console.print(Text(visible(line)))
    return file.getvalue().encode()
