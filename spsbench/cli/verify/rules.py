"""The compatibility table of `sps verify rules` on stdout."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.audit.law.rules import Row, compatibility
from spsbench.cli.notes import say
from spsbench.cli.safe import one_line, write
from spsbench.errors import Exit
from spsbench.loop.types import Guarantee
from spsbench.settings.records import SCHEMA
from spsbench.spec import Spec

WIDTH = 160
HEADINGS = ("verifier", "drafter", "schedule", "claims", "verdict", "total variation", "where")


def enumerate_rules(specs: Sequence[Spec], form: str) -> int:
    """Enumerate, print, and judge; the exit code."""
    rows = []
    for row in compatibility(specs):
        rows.append(row)
        say(f"{row.verifier} x {row.drafter} x {row.schedule}: {row.verdict}")
    code = judge(rows)
    if form == "json":
        listed = [asdict(row) | {"verdict": row.verdict} for row in rows]
        write(json.dumps({"schema": SCHEMA, "exit": int(code), "rows": listed}, indent=2) + "\n")
    else:
        write(drawn(rows))
    say(conclusion(rows))
    return code


def judge(rows: Sequence[Row]) -> Exit:
    """Bias where a promise is broken; not valid where one could not be looked at."""
    if any(row.verdict == "BIASED" for row in rows):
        return Exit.BIAS
    return Exit.NOT_VALID if any(row.verdict == "not shown" for row in rows) else Exit.OK


def conclusion(rows: Sequence[Row]) -> str:
    """What was shown, in a line."""
    biased = sorted({row.verifier for row in rows if row.verdict == "BIASED"})
    if biased:
        return f"BIAS FOUND: {', '.join(biased)} claims what its law does not keep"
    if hidden := sorted({row.verifier for row in rows if row.verdict == "not shown"}):
        return f"NOT VALID: could not enumerate {', '.join(hidden)}"
    proved = sum(row.verdict in (Guarantee.EXACT.value, Guarantee.GREEDY.value) for row in rows)
    refused = [row for row in rows if row.refused is not None]
    rightly = sum(row.wrong for row in refused)
    return (
        f"held: {proved} pairings keep their promise to 1e-12; "
        f"{rightly} of {len(refused)} refused ones would have been wrong"
    )


def drawn(rows: Sequence[Row]) -> str:
    """The table, without colours."""
    grid = Table(title="Verifier x drafter x schedule, by enumeration of every uniform")
    for heading in HEADINGS:
        grid.add_column(heading, justify="right" if heading == "total variation" else "left")
    for row in rows:
        distance = "n/a" if row.distance is None else f"{row.distance:.3g}"
        where = row.error or (row.worst if row.wrong else "")
        names = (row.verifier, row.drafter, row.schedule, row.guarantee, row.verdict)
        grid.add_row(*(Text(one_line(cell)) for cell in (*names, distance, where)))
    file = StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(grid)
    for reason in dict.fromkeys(row.refused for row in rows if row.refused):
        console.print(Text(one_line(f"refused: {reason}")))
    return file.getvalue()
