"""Output of reports, tables and plots, to stdout or files."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from spsbench.cli.terminal import is_terminal, one_line, say, to_json_line, with_flags, write
from spsbench.errors import DataError, Exit, SpsError, UsageError, first_line
from spsbench.metrics.compare import MARGINS, Change
from spsbench.plugins import is_ours, make, plug_in
from spsbench.registry import find
from spsbench.reports.columns import full
from spsbench.reports.plots import png, svg
from spsbench.reports.reporter import Figure, Report, Section, TextTable
from spsbench.reports.run_tables import compare_with_run
from spsbench.reports.table import chart, table_text
from spsbench.settings.labels import Names
from spsbench.spec import Spec
from spsbench.store.atomic import check_replaceable, replace_file


def publish(
    report: Report, form: str, out: Path | None = None, *, with_chart: bool = False
) -> None:
    """Write `report` in a format of the registry to stdout, or into the file `out`.

    `with_chart` draws the speed-ups of `form` table on a terminal as stdout, even with `out`.
    Raises UsageError for bytes that are no text on a terminal, DataError for a reporter that fails,
    and WriteError for a file that cannot be written.
    """
    if out is None:
        report = on_screen(report)
    deliver(render_report(report, form), form, out)
    if with_chart and form == "table" and is_terminal(sys.stdout):
        for table in report.tables:
            write(chart(table.rows, report.width, plain=report.plain))


def on_screen(report: Report) -> Report:
    """Return a report as wide as a terminal, and plain where stdout cannot show `SYMBOLS`."""
    width = get_terminal_size().columns if is_terminal(sys.stdout) else report.width
    try:
        SYMBOLS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return replace(report, width=width, plain=True)
    return replace(report, width=width, plain=False)


def deliver(content: bytes | str, form: str, out: Path | None) -> None:
    """Write what a reporter made to stdout, or into the file `out`, which a line on stderr names.

    Raises UsageError for bytes, which are no text, on a terminal; WriteError where writing fails.
    """
    if out is not None:
        replace_file(out, content.encode() if isinstance(content, str) else content)
        say(f"wrote {out}")
    elif isinstance(content, bytes) and is_terminal(sys.stdout):
        raise UsageError(f"--format {form} on a terminal: expected a file. Name one with --out")
    else:
        write(content)


def render_report(report: Report, form: str) -> bytes | str:
    """Return the output of the reporter called `form` for `report`.

    But for json and csv, remarks name flags. Raises UsageError for no such reporter, and DataError
    for one of another package that fails, or makes neither bytes nor text.
    """
    spec = Spec.parse(form)
    reporter = plug_in("reporters", spec)
    try:
        if isinstance(reporter, type):
            reporter = make("reporters", spec)
        content = reporter(report if form in DATA else with_flags_in(report))
        if not isinstance(content, bytes | str):
            raise TypeError(f"it made {type(content).__name__}, no bytes and no text")
    except SpsError:
        raise
    except Exception as error:  # a plug-in may raise anything
        if is_ours("reporters", spec):
            raise
        entry = find("reporters", spec.name) if spec.path is None else None
        origin = f"{entry.summary}, {entry.path}: " if entry else ""
        raise DataError(
            f"--format {form} ({origin}{type(error).__name__}: {first_line(error)}): expected a "
            "report. Tell its authors, or choose another format"
        ) from error
    return content


DATA = ("json", "csv")  # equal to the files of a run, which name fields
SYMBOLS = "─±"  # that a table has where stdout can show them


def with_flags_in(report: Report) -> Report:
    """Return a report whose remarks, findings and notes name flags in place of fields."""
    return replace(
        report,
        tables=[
            replace(
                table,
                remarks=[with_flags(line) for line in table.remarks],
                further=[with_flags_below(other) for other in table.further],
            )
            for table in report.tables
        ],
        sections=[
            replace(
                section,
                line=with_flags(section.line),
                notes=tuple(map(with_flags, section.notes)),
                tables=tuple(map(with_flags_below, section.tables)),
            )
            for section in report.sections
        ],
    )


def with_flags_below(table: TextTable) -> TextTable:
    """Return a table whose remarks name flags in place of fields."""
    return table._replace(remarks=[with_flags(line) for line in table.remarks])


def show_changes(runs: Sequence[Path], against: Path, margin: float | None) -> int:
    """Print on stderr the changes since the run `against`; return 1 if some are regressions, or 0.

    `margin`, a fraction, applies to all figures; None: each has its own. Raises UsageError where
    nothing is shared, and SpsError for a damaged run.
    """
    margins = MARGINS if margin is None else dict.fromkeys(MARGINS, margin)
    comparison = compare_with_run(runs, against, margins)
    if not comparison.differences:
        raise UsageError(
            f"--against {against}: expected a run that shares configurations with this one"
        )
    names = Names(change.cell for change in comparison.differences)
    for change in comparison.differences:
        name = f"{names.full(change.cell)}: {change.figure}"
        pairs = f"{change.pairs} pairs" if change.pairs else "no pairs"
        text = (
            "is equal"
            if change.verdict is Change.EQUAL
            else f"changed by {full(change.change, 3)}, margin {change.margin:g}: {change.verdict}"
        )
        say(f"{name} {text} ({pairs})")
    if not all(change.pairs for change in comparison.differences):
        say("no pairs: the runs share no sample; their intervals are treated as independent")
    for where, cells in (("this run", comparison.added), ("the earlier run", comparison.gone)):
        if cells:
            say(f"{len(cells)} configurations only in {where}")
    say(f"{len(comparison.regressions)} regressions")
    return Exit.FAILED_SAMPLES if comparison.regressions else Exit.OK


DRAW = {"png": png, "svg": svg}


def save_plot(figure: Figure, path: Path) -> None:
    """Draw `figure` as PNG and SVG, named after `path`, or in the format of its suffix.

    Raises UsageError for another ending, or no name; WriteError for a file that cannot be written.
    """
    for kind, file in plot_files(path).items():
        replace_file(file, DRAW[kind](figure))
        say(f"wrote {file}")


def check_plot(path: Path) -> None:
    """Check that `save_plot` can write to `path`; raises UsageError or WriteError if not."""
    for file in plot_files(path).values():
        check_replaceable(file)


def plot_files(path: Path) -> Mapping[str, Path]:
    """Return format -> file that `--plot path` names; UsageError: another ending, or no name."""
    ending = path.suffix.removeprefix(".")
    if not path.name or (ending and ending not in DRAW):
        raise UsageError(f"--plot {path}: expected a name that ends in .png or .svg, or in neither")
    return {kind: path.with_suffix(f".{kind}") for kind in ([ending] if ending else DRAW)}


WIDTH = 160  # columns without a terminal


def show(values: Any, format: str, *sections: Section, out: Path | None = None) -> None:
    """Write `values` as JSON, or the tables and lines of `sections`, to `out` or stdout."""
    text = ""
    for section in sections:
        lines = [section.title, *section.notes, section.line]
        text += format_tables(section.tables)
        text += "".join(f"{one_line(with_flags(line))}\n" for line in lines if line)
    deliver(to_json_line(values) if format == "json" else text, format, out)


def format_tables(tables: Iterable[TextTable]) -> str:
    """Return tables one below the other, as wide as the terminal, or `WIDTH` without one."""
    width = None if is_terminal(sys.stdout) else WIDTH
    return "".join(table_text(with_flags_below(table), width) for table in tables)
