"""Tables of runs on stdout, in one of the formats, and the plot beside them."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from spsbench.cli.notes import say
from spsbench.cli.safe import is_terminal, write
from spsbench.errors import Exit, UsageError
from spsbench.figures.compare import MARGINS, compare
from spsbench.figures.summary import Summary
from spsbench.registry import find
from spsbench.reports.columns import full
from spsbench.reports.run_tables import Table, tables
from spsbench.settings.names import method, setting
from spsbench.store.atomic import replace_file

PICTURES = ("png", "svg")


def print_report(made: Sequence[Table], form: str) -> None:
    """Write the tables; several JSON documents become one array."""
    reporter = find("reporters", form).load()
    if form == "table":
        reporter = partial(reporter, **screen())
    texts = [reporter(table.rows, table.title).decode() for table in made]
    if form == "json" and len(texts) > 1:
        write("[\n" + ",\n".join(text.rstrip() for text in texts) + "\n]\n")
        return
    write("\n".join(texts))


def screen() -> dict[str, Any]:
    """How a table must be drawn for stdout."""
    how: dict[str, Any] = {"plain": not can_show("─±")}
    return how | {"width": get_terminal_size().columns} if is_terminal(sys.stdout) else how


def can_show(text: str) -> bool:
    """Whether the encoding of stdout has all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def save_plot(table: Table, path: Path) -> list[Path]:
    """Figure 1 as PNG and SVG, named after `path`; the files that were written.

    Raises:
        UsageError: another ending. WriteError: a file that cannot be written.
    """
    from spsbench.reports.plots import png, svg

    ending = path.suffix.removeprefix(".")
    if ending and ending not in PICTURES:
        raise UsageError(f"--plot {path}: expected a name that ends in .png or .svg, or in neither")
    kinds = [ending] if ending else list(PICTURES)
    written = []
    for kind in kinds:
        draw = {"png": png, "svg": svg}[kind]
        file = path.with_suffix(f".{kind}")
        replace_file(file, draw(table.whole, table.title, ceiling_ms=table.ceiling_ms))
        written.append(file)
    return written


def compared(rows: Sequence[Summary], against: Path, margin: float | None) -> int:
    """Say what changed since `against`; the exit code."""
    margins = MARGINS if margin is None else dict.fromkeys(MARGINS, margin)
    base = [row for table in tables(against) for row in table.rows]
    found = compare(base, rows, margins)
    if not found.differences:
        raise UsageError(f"--against {against}: expected a run that has cells of this one")
    for each in found.differences:
        name = f"{each.cell.work.task}, {setting(each.cell)}, {method(each.cell)}: {each.figure}"
        change = full(each.change, 3)
        say(f"{name} changed by {change} (margin {each.margin:g}): {each.verdict}")
    for what, cells in (("only here", found.added), ("only there", found.gone)):
        if cells:
            say(f"{len(cells)} cells {what}")
    say(f"{len(found.regressions)} regressions")
    return Exit.FAILED_SAMPLES if found.regressions else Exit.OK
