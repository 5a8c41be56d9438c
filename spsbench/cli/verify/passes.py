"""Results of `sps verify state` and `sps verify rows`: a table or JSON."""

import json as js
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.audit.pass_report import Comparison, PassReport
from spsbench.cli.output.terminal import one_line, say, write
from spsbench.errors import Exit
from spsbench.settings.records import SCHEMA

WIDTH = 140
HEADINGS = (
    "fed by",
    "dtype",
    "block",
    "apart",
    "deviations",
    "flips",
    "difference",
    "first module",
)


def publish_passes(report: PassReport, *, json: bool) -> int:
    """Print the report; return the exit code."""
    code = Exit.OK if report.held else Exit.BIAS
    if not report.valid:
        code = Exit.NOT_VALID
    if json:
        content = {"schema": SCHEMA, "exit": int(code), **asdict(report)}
        write(js.dumps(content, indent=2, allow_nan=False) + "\n")
    else:
        write(table(report))
    say(report.line)
    return code


def table(report: PassReport) -> str:
    """Return a table with a row per way, dtype and kind of difference, without colours."""
    grid = Table(title=Text(one_line(f"{report.model}: passes over several tokens")))
    for number, heading in enumerate(HEADINGS):
        grid.add_column(heading, justify="right" if 2 <= number <= 5 else "left")
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for one in report.comparisons:
        groups.setdefault((one.way, one.dtype, one.kind.value), []).append(one)
    for (way, dtype, kind), group in groups.items():
        worst = max(group, key=lambda one: (bool(one.module), one.gap))
        module = f"{worst.module} ({worst.operation}) by {worst.by:.2g}" if worst.module else ""
        gap, spread = max(one.gap for one in group), worst.spread
        numbers = f"{gap:.2g}", f"{gap / spread if spread else 0:.2g}"
        flips = f"{max(one.flips for one in group)} of {worst.tokens}"
        sizes = ", ".join(str(one.size or "?") for one in group)
        cells = way, dtype, sizes, *numbers, flips, kind, module
        grid.add_row(*(Text(one_line(cell)) for cell in cells))
    file = StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(grid)
    if report.rounding is not None:
        control = (
            f"nats between stated log-probabilities; of a text alone and among others "
            f"{report.rounding:.2g}, so that rounding explains {report.explained:.2g}; control: of "
            f"neighbouring tokens {report.moved:.2g}"
        )
        console.print(Text(control))
    if report.states:
        moved = f"control: states set to zero move logits by {report.moved:.2g} deviations"
        console.print(Text(moved))
    return file.getvalue()
