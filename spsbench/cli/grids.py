"""Tables of texts on a terminal, or in a file."""

import sys
from collections.abc import Iterable
from io import StringIO

from spsbench.cli.safe import is_terminal, one_line
from spsbench.planning.forecast.grid import Grid

WIDTH = 160  # columns where nobody's window sets them


def drawn(grids: Iterable[Grid]) -> str:
    """The tables one below the other, without colours; the first column to the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    file = StringIO()
    width = None if is_terminal(sys.stdout) else WIDTH
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    for grid in grids:
        table = Table(title=Text(one_line(grid.title)), box=box.SIMPLE_HEAD)
        for number, heading in enumerate(grid.headings):
            table.add_column(Text(one_line(heading)), justify="right" if number else "left")
        for row in grid.rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        console.print(table)
        for line in grid.remarks:
            console.print(Text(one_line(line)))
    return file.getvalue()
