"""Results of `sps verify pair` and `run`: tables, JSON, pages and plots."""

import json as js
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.audit.statistical.audit import AuditVerdict, Finding, of_finding, tests
from spsbench.audit.statistical.betting import alarm
from spsbench.audit.statistical.greedy import Greedy, of_greedy
from spsbench.audit.verify import Held
from spsbench.cli.output.flags import with_flags
from spsbench.cli.output.publish import publish as show
from spsbench.cli.output.publish import save_plot
from spsbench.cli.output.terminal import one_line, say, write
from spsbench.cli.verify.form import Form
from spsbench.errors import Exit, UsageError
from spsbench.reports.audits import audit_section, wealth_figure
from spsbench.reports.figures import Figure
from spsbench.reports.reporter import Report, known_categories
from spsbench.reports.run_tables import report_on
from spsbench.settings.records import SCHEMA
from spsbench.store.run_folder import write_audits

WIDTH = 120
SHOWN = 10  # rows of failures
CODES = {
    AuditVerdict.HELD: Exit.OK,
    AuditVerdict.BIAS: Exit.BIAS,
    AuditVerdict.NOT_VALID: Exit.NOT_VALID,
}
HEADINGS = ("direction", "stratum", "tokens", "observed", "expected", "bias", "z")


def publish(audited: Sequence[Held], form: Form) -> int:
    """Print, plot and store the results; return the exit code of the worst."""
    codes = [CODES[audit.result.verdict] for audit in audited]
    code = next((c for c in (Exit.BIAS, Exit.NOT_VALID) if c in codes), Exit.OK)
    if form.plot is not None:
        save_plot(figure(audited), form.plot)
    audits = [
        {"name": audit.name, "settings": audit.settings, **values(audit.result)}
        | ({"advice": audit.advice} if audit.advice else {})
        for audit in audited
    ]
    if form.keep and form.run is not None:
        say(f"kept in {write_audits(form.run, audits)}: reports of the run show it")
    if form.name == "html":
        page(audits, form)
    elif form.name == "json":
        content = {"schema": SCHEMA, "exit": int(code), "audits": audits}
        write(js.dumps(content, indent=2, allow_nan=False) + "\n")
    else:
        for audit in audited:
            write(result_text(audit))
    for audit in audited:
        say(f"{audit.name}: {audit.result.line}")
    return code


def page(audits: Sequence[Mapping[str, Any]], form: Form) -> None:
    """Write the page of audits; the audits of a run are shown in the page of the run.

    Raises:
        SpsError: a run that is damaged, a file that cannot be written.
    """
    if form.run is None:
        sections = [audit_section(audit) for audit in audits]
        report = Report("Audit of a pair", [], sections=sections)
    else:
        run_report = known_categories(report_on([form.run], by_group=True))
        title = run_report.tables[0].title.run
        report = replace(run_report, sections=[audit_section(audit, title) for audit in audits])
    show(report, "html", form.out)


def values(result: Finding | Greedy) -> dict[str, Any]:
    """Return a result as plain values for JSON."""
    return of_greedy(result) if isinstance(result, Greedy) else of_finding(result)


def result_text(audited: Held) -> str:
    """Return the tables, without colours."""
    file = StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    if isinstance(audited.result, Greedy):
        _greedy(console, audited.name, audited.result)
    else:
        _sampled(console, audited.name, audited.result)
    console.print(Text(one_line(with_flags(audited.result.line))))
    if audited.advice:
        console.print(Text(one_line(with_flags(audited.advice))))
    return file.getvalue()


def _sampled(console: Console, name: str, finding: Finding) -> None:
    for arm in (finding.sps, finding.ars):
        grid = Table(title=Text(one_line(f"{name}: {arm.name}, {arm.tokens:,} tokens")))
        for i, heading in enumerate(HEADINGS):
            grid.add_column(heading, justify="left" if i < 2 else "right")
        for t in tests(arm.evidence()):
            figures = f"{t.observed:.4f}", f"{t.expected:.4f}", f"{t.bias:+.4f}", f"{t.z:+.2f}"
            grid.add_row(t.direction, t.stratum, f"{t.tokens:,}", *figures)
        console.print(grid)
        money = arm.peak / math.log(10)
        end = alarm(finding.level) / math.log(10)
        line = f"{arm.name}: largest e-value 10^{money:.2f} (alarm at 10^{end:.2f})"
        console.print(Text(line))
        for event in arm.impossible[:SHOWN]:
            before = " ".join(map(str, event.before))
            where = f"{event.text}, position {event.position}, token {event.token} after {before}"
            console.print(Text(one_line(f"impossible: {where}: {event.reason}")))
    if finding.control is not None:
        c = finding.control
        console.print(
            Text(f"control: an injected bias of {c.bias:.3g} was caught in {c.caught}/{c.repeats}")
        )


def _greedy(console: Console, name: str, greedy: Greedy) -> None:
    grid = Table(title=Text(one_line(f"{name}: greedy")))
    for heading in ("prompt", "kind", "at", "tokens", "logits", "gap", "rounding"):
        grid.add_column(heading)
    for comparison in greedy.compared:
        if comparison.position is None:
            row = [comparison.name, comparison.kind.value, *[""] * 5]
        else:
            logits = " / ".join(f"{x:.4f}" for x in comparison.logits or ())
            tokens = " / ".join(map(str, comparison.tokens or ()))
            numbers = logits, f"{comparison.gap:.3g}", f"{comparison.tolerance:.3g}"
            row = [
                comparison.name,
                comparison.kind.value,
                str(comparison.position),
                tokens,
                *numbers,
            ]
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    console.print(grid)


def figure(audited: Sequence[Held]) -> Figure:
    """Return the plot of the e-process over tokens.

    Raises:
        UsageError: greedy audits have none.
    """
    curves, ends = {}, []
    for audit in audited:
        if isinstance(audit.result, Finding):
            ends.append(alarm(audit.result.level) / math.log(10))
            for arm in (audit.result.sps, audit.result.ars):
                label = arm.name if len(audited) == 1 else f"{audit.name}, {arm.name}"
                curves[one_line(label)] = arm.thinned()
    if not curves:
        raise UsageError("--plot of a greedy audit: expected a temperature above 0. Leave it out")
    heading = one_line(audited[0].result.line) if len(audited) == 1 else ""
    return wealth_figure(curves, max(ends), heading)
