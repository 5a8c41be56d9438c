"""Results of `sps verify pair` and `run`: tables, JSON, pages and plots."""

import json as js
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.audit.verify import Held
from spsbench.cli.output.flags import with_flags
from spsbench.cli.output.publish import publish as show
from spsbench.cli.output.publish import save_plot
from spsbench.cli.output.terminal import one_line, say, write
from spsbench.errors import Exit, UsageError
from spsbench.reports.audits import audit_section, e_process_figure
from spsbench.reports.reporter import Figure, Report
from spsbench.reports.run_tables import report_on
from spsbench.reports.table import drawn
from spsbench.settings.records import SCHEMA
from spsbench.store.run_folder import write_audits

WIDTH = 120
CODES = {
    AuditVerdict.HELD: Exit.OK,
    AuditVerdict.BIAS: Exit.BIAS,
    AuditVerdict.NOT_VALID: Exit.NOT_VALID,
}


def publish(
    audited: Sequence[Held],
    format: str,
    out: Path | None,
    plot: Path | None,
    *,
    run: Path | None = None,
    keep: bool = False,
) -> int:
    """Print, plot and store the results; return the exit code of the worst.

    `run` is the run whose page contains the results, and whose folder may keep them.
    """
    codes = [CODES[audit.result.verdict] for audit in audited]
    audits = [values(audit) for audit in audited]
    code = next((c for c in (Exit.BIAS, Exit.NOT_VALID) if c in codes), Exit.OK)
    if plot is not None:
        save_plot(figure(audits), plot)
    if keep and run is not None:
        say(f"kept in {write_audits(run, audits)}: reports of the run show it")
    if format == "html":
        show(report_of(audits, run), "html", out)
    elif format == "json":
        content = {"schema": SCHEMA, "exit": int(code), "audits": audits}
        write(js.dumps(content, indent=2, allow_nan=False) + "\n")
    else:
        for audit in audits:
            write(result_text(audit))
    for audit in audits:
        say(f"{audit['name']}: {audit['line']}")
    return code


def report_of(audits: Sequence[Mapping[str, Any]], run: Path | None) -> Report:
    """Return the page of audits; the audits of a run are shown in the page of the run.

    Raises:
        SpsError: a run that is damaged.
    """
    if run is None:
        return Report("Audit of a pair", [], sections=[audit_section(audit) for audit in audits])
    report = report_on([run])
    title = report.tables[0].title.run
    return replace(report, sections=[audit_section(audit, title) for audit in audits])


def values(audited: Held) -> dict[str, Any]:
    """Return an audit as plain values for JSON."""
    advice = {"advice": audited.advice} if audited.advice else {}
    named = {"name": audited.name, "settings": audited.settings}
    return named | audited.result.to_json() | {"line": audited.line} | advice


def result_text(audit: Mapping[str, Any]) -> str:
    """Return the tables of an audit and its lines, without colours."""
    section = audit_section(audit)
    lines = [section.title, *section.notes, section.line, *filter(None, [audit.get("advice")])]
    tables = "".join(drawn(table, WIDTH) for table in section.tables)
    return tables + "".join(f"{one_line(with_flags(line))}\n" for line in lines)


def figure(audits: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the plot of the e-process over tokens.

    Raises:
        UsageError: greedy audits have none.
    """
    sampled = [audit for audit in audits if "alarm_log10" in audit]
    if not sampled:
        raise UsageError("--plot of a greedy audit: expected a temperature above 0. Leave it out")
    several = len(audits) > 1
    curves = {
        one_line(f"{audit['name']}, {arm['name']}" if several else arm["name"]): arm["curve"]
        for audit in sampled
        for arm in (audit["sps"], audit["controls"]["ars"])
    }
    heading = "" if several else one_line(audits[0]["line"])
    return e_process_figure(curves, max(audit["alarm_log10"] for audit in sampled), heading)
