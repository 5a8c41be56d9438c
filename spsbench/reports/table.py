"""Tables for a terminal."""

from collections.abc import Sequence
from io import StringIO
from itertools import accumulate
from typing import Literal

from spsbench.reports.columns import brief
from spsbench.reports.reporter import Medium, Report, Table
from spsbench.reports.text import body, visible

LONGEST = 24  # characters of a word that is never split
FRAME = 3  # characters of padding and border for each column


def table(report: Report) -> str:
    """Return text as wide as its medium, without colours; ± is the longer side of an interval.

    If the figures do not fit, the last columns are omitted, and a line names them.
    """
    return "\n".join(_table(each, report.medium) for each in report.tables)


def _table(table: Table, medium: Medium) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    headings, lines = body(table, brief)
    width, plain = medium.width, medium.plain
    names = len(lines[0].names) if lines else len(headings)
    texts = [[visible(cell) for cell in line.names + line.figures] for line in lines]
    if plain:
        texts = [[cell.replace("±", "+-") for cell in cells] for cells in texts]
    widths = fitted(list(zip(headings, *texts, strict=True)), width, names)
    shown = len(widths)

    grid = Grid(box=box.ASCII if plain else box.SIMPLE_HEAD)
    grid.title = Text(visible(str(table.title)))
    for i, heading in enumerate(headings[:shown]):  # Text: markup in names is literal
        side: Literal["left", "right"] = "left" if i < names else "right"
        grid.add_column(Text(visible(heading)), justify=side, width=widths[i], overflow="fold")
    for cells in texts:
        grid.add_row(*map(Text, cells[:shown]))

    file = StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(grid)
    for line in table.remarks:
        console.print(Text(visible(line)))
    if shown < len(headings):
        left_out = visible(", ".join(headings[shown:]))
        console.print(
            Text(f"Columns left out: {left_out}. A wider terminal or --format md has them.")
        )
    return file.getvalue()


def fitted(columns: Sequence[Sequence[str]], width: int, names: int) -> list[int]:
    """Return the widths of as many columns as fit, at least the longest word, at best whole lines.

    Columns are omitted because rich would split words evenly in all columns. The first `names`
    columns identify a row and are never omitted: their words are split if space is short.
    """
    words = [
        max(len(word) for text in column for word in text.split() or [""]) for column in columns
    ]
    room = max(1, (width - 1) // max(names, 1) - FRAME)
    longest = [min(LONGEST, room)] * names + [LONGEST] * (len(words) - names)
    needed = [min(word, most) for word, most in zip(words, longest, strict=True)]
    ends = accumulate(word + FRAME for word in needed)
    needed = needed[: max(1, names, sum(end < width for end in ends))]
    spare = width - 1 - sum(word + FRAME for word in needed)
    widths = []
    for column, least in zip(columns, needed, strict=False):
        more = min(max(map(len, column)) - least, max(spare, 0))
        widths.append(least + more)
        spare -= more
    return widths
