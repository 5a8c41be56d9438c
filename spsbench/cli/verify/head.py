"""Expected acceptance of a head on stdout."""

import json as js
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.api.golden import HeadFound
from spsbench.audit.statistical.golden import Golden
from spsbench.cli.notes import say
from spsbench.cli.safe import one_line, write
from spsbench.errors import Exit
from spsbench.settings.records import SCHEMA

WIDTH = 120


def publish_head(found: HeadFound, *, json: bool) -> int:
    """Print; the exit code, which is that of an audit."""
    code = Exit.OK if found else Exit.BIAS
    write(js.dumps(values(found, code), indent=2) + "\n" if json else table(found))
    if found.made:
        say(f"written: {found.path}")
    say(found.line)
    return code


def values(found: HeadFound, code: Exit) -> dict[str, Any]:
    """For JSON."""
    parted = found.parted
    return {
        "schema": SCHEMA,
        "exit": int(code),
        "golden": summary(found.golden),
        "now": None if found.now is None else summary(found.now),
        "log": found.log,
        "parted": None if parted is None else parted._asdict(),
    }


def summary(golden: Golden) -> dict[str, Any]:
    """A golden file without its texts."""
    whole = golden.to_json()
    del whole["passages"]
    return whole


def table(found: HeadFound) -> str:
    """A row a depth, without colours."""
    golden, now = found.golden, found.now
    title = f"{golden.head} for {golden.target}: {golden.kind or golden.drafter}"
    grid = Table(title=Text(one_line(title)))
    columns = ["depth", "places", "acceptance", "agreement"]
    if now is not None:
        columns += [f"{now.run['dtype']} {now.run['engine']}", "agreement there"]
    if found.log is not None:
        columns.append("log")
    for heading in columns:
        grid.add_column(Text(one_line(heading)), justify="right")
    for i, each in enumerate(golden.depths):
        row = [str(each.depth), str(each.places), f"{each.acceptance:.4f}", f"{each.agreement:.3f}"]
        if now is not None:
            there = now.depths[i] if i < len(now.depths) else None
            row += (
                ["", ""] if there is None else [f"{there.acceptance:.4f}", f"{there.agreement:.3f}"]
            )
        if found.log is not None:
            row.append(f"{found.log[i]:.4f}" if i < len(found.log) else "")
        grid.add_row(*row)
    file = StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(grid)
    return file.getvalue()
