"""Text for a terminal: tables, and speed-ups as bars."""

from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import accumulate

from spsbench.messages import visible
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import brief, full
from spsbench.reports.reporter import Report, TextTable
from spsbench.reports.text import body
from spsbench.settings.labels import Names

LONGEST = 24  # characters of a word that is never split
FRAME = 3  # characters of padding and border for each column


def report_text(report: Report) -> str:
    """Return text of the report's width, without colours, with intervals as `brief` shows them.

    If the figures do not fit, the least important columns are omitted, and a line names them.
    """
    return "\n".join(
        table_text(text_table, report.width, plain=report.plain, fit=True)
        for table in report.tables
        for text_table in (
            without_shared(body(table, brief, terse=True)),
            *map(without_shared, table.further),
        )
    )


def without_shared(table: TextTable) -> TextTable:
    """Return a table without what all rows share in task and setting; a remark says it once.

    A column that is then empty is left out. The paper's rows do not count. A remark on an
    incomplete run stays the first.
    """
    headings, rows, notes = [*table.headings], [[*row] for row in table.rows], []
    for heading in ("task", "setting"):
        if heading not in headings[: table.names]:
            continue
        at = headings.index(heading)
        texts = [
            row[at].split(", ")
            for i, row in enumerate(rows)
            if row[at] and i not in table.paper_rows
        ]
        shared = [part for part in texts[0] if all(part in text for text in texts)] if texts else []
        for row in rows:
            row[at] = ", ".join(part for part in row[at].split(", ") if part not in shared)
        if shared:
            notes.append(f"All rows: {', '.join(shared)}.")
        if rows and not any(row[at] for row in rows):
            headings.pop(at)
            for row in rows:
                row.pop(at)
    names = table.names - (len(table.headings) - len(headings))
    lead = [line for line in table.remarks if line.startswith("Incomplete: ")]
    others = [line for line in table.remarks if line not in lead]
    return table._replace(
        headings=headings, rows=rows, names=names, remarks=[*lead, *notes, *others]
    )


def table_text(
    table: TextTable, width: int | None, *, plain: bool = False, fit: bool = False
) -> str:
    """Return a table with its remarks, without colours, in `width` columns; None: the terminal's.

    `plain` uses ASCII only; `fit` leaves columns out of a given `width` where words would be split,
    and names them in a last line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, names = table.headings, table.names
    texts = [[visible(cell) for cell in row] for row in table.rows]
    if plain:
        texts = [[cell.replace("±", "+-") for cell in cells] for cells in texts]
    widths: dict[int, int | None] = dict.fromkeys(range(len(headings)))
    if fit and width is not None:
        widths = {**fit_columns(list(zip(headings, *texts, strict=True)), width, names)}

    grid = Table(box=box.ASCII if plain else box.SIMPLE_HEAD, title=Text(visible(table.title)))
    for i in widths:  # Text: markup in names is literal
        grid.add_column(
            Text(visible(headings[i])),
            justify="left" if i < names else "right",
            width=widths[i],
            overflow="fold" if fit else "ellipsis",
        )
    for cells in texts:
        grid.add_row(*(Text(cells[i]) for i in widths))

    file = StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(grid)
    for line in table.remarks:
        console.print(Text(visible(line)))
    if len(widths) < len(headings):
        left_out = visible(", ".join(h for i, h in enumerate(headings) if i not in widths))
        console.print(
            Text(f"Columns left out: {left_out}. A wider terminal has them, and so has md.")
        )
    return file.getvalue()


FIRST = ("n", "speed-up", "tau", "answer speed-up", "verdict", "ms/token", "alpha")
"""Columns of figures that stay the longest, in this order; then the others as they stand."""


def fit_columns(columns: Sequence[Sequence[str]], width: int, names: int) -> dict[int, int]:
    """Return index -> width of the columns that fit: the longest word, at best whole lines.

    Others, last by `FIRST` and place, are omitted, since rich would split words in all columns. The
    first `names` columns identify a row and are never omitted: their words are split if space is
    short. A column begins with its heading.
    """
    words = [
        max(len(word) for text in column for word in text.split() or [""]) for column in columns
    ]
    room = max(1, (width - 1) // max(names, 1) - FRAME)
    longest = [min(LONGEST, room)] * names + [LONGEST] * (len(words) - names)
    needed = [min(word, most) for word, most in zip(words, longest, strict=True)]

    def rank(at: int) -> int:
        heading = columns[at][0]
        return FIRST.index(heading) if heading in FIRST else len(FIRST) + at

    order = [*range(names), *sorted(range(names, len(columns)), key=rank)]
    ends = accumulate(needed[at] + FRAME for at in order)
    kept = sorted(order[: max(1, names, sum(end < width for end in ends))])
    spare = width - 1 - sum(needed[at] + FRAME for at in kept)
    widths = {}
    for at in kept:
        more = min(max(map(len, columns[at])) - needed[at], max(spare, 0))
        widths[at] = needed[at] + more
        spare -= more
    return widths


SHADES, PLAIN_SHADES = "█▓░│", "#=-|"
LABEL, BAR = 44, 48  # characters at most


def chart(rows: Sequence[Summary], width: int, *, plain: bool = False) -> str:
    """Return a bar for each row that has a speed-up, under a heading for each task and setting.

    A bar is full up to the low end of its interval, lighter up to the estimate, lightest up to the
    high end. The chart is empty if fewer than two methods have a speed-up. Rows of groups are
    omitted. `width` are the columns of the terminal; `plain` uses ASCII only.
    """
    gains = [(row, gain) for row in rows if row.group is None and (gain := speedup_of_row(row))]
    if len({(row.cell.noise_key, row.cell.decoder) for row, _ in gains}) < 2:
        return ""
    names = Names(row.cell for row, _ in gains)
    labels = [visible(names.how(row.cell)) for row, _ in gains]
    wide = min(LABEL, max(map(len, labels)))
    room = max(10, min(BAR, width - wide - 38))
    scale = max(1.0, *(gain.high or gain.mean for _, gain in gains)) / room

    def lines() -> Iterator[str]:
        """Yield a bar for each row, with a heading before each group of one work."""
        heading = None
        for (row, gain), label in zip(gains, labels, strict=True):
            if heading != (heading := names.work(row.cell)):
                yield visible(f"speed-up over plain sampling: {heading}")
            text = bar(gain, scale, room, PLAIN_SHADES if plain else SHADES)
            note = " predicted" if row.speedup is None else " slower" * (gain.mean < 1)
            yield f"  {label[:wide]:<{wide}}  {text}  {full(gain, 2, 'x')}{note}"

    return "\n".join(lines()) + "\n"


def speedup_of_row(row: Summary) -> Estimate | None:
    """Return the measured speed-up of a row, else a plan's; None: there is none, or undecided."""
    gain = row.speedup or row.predicted_speedup
    return None if gain is None or gain.undecided else gain


def bar(gain: Estimate, scale: float, room: int, shades: str) -> str:
    """Return a bar of `room` characters, each worth `scale`, in shades up to low, mean, high.

    Without an interval low and high are the mean. The fourth of `shades` marks 1 where it is blank.
    """
    low = gain.mean if gain.low is None else gain.low
    high = gain.mean if gain.high is None else gain.high
    ends = (low, gain.mean, high)
    at_one = round(1 / scale) - 1

    def cell(i: int) -> str:
        middle = (i + 0.5) * scale
        for shade, end in zip(shades, ends, strict=False):
            if middle < end:
                return shade
        return shades[3] if i == at_one else " "

    return "".join(map(cell, range(room)))
