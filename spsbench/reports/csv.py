"""Comma-separated values: one row a cell, four columns a figure, all tables in one."""

import csv as writer
from io import StringIO

from spsbench.reports.columns import NAMES, names
from spsbench.reports.quoting import csv_text
from spsbench.reports.reporter import Report

COUNTS = ("samples", "n", "failures", "cut", "timed", "loaded", "horizon")


def csv(report: Report) -> str:
    """RFC 4180; a figure that does not apply is empty. Numbers are in full."""
    figures = list(dict.fromkeys(name for t in report.tables for s in t.rows for name in s.figures))
    named = names(row for table in report.tables for row in table.rows)
    parts = ("mean", "low", "high", "n")
    file = StringIO()
    out = writer.writer(file)
    out.writerow(
        ["run", "cell", "k", *NAMES, *COUNTS]
        + [
            csv_text(name if part == "mean" else f"{name}.{part}")
            for name in figures
            for part in parts
        ]
    )
    for table in report.tables:
        for s in table.rows:
            known = s.figures
            out.writerow(
                [csv_text(table.title.run), s.cell.id, "" if s.cell.k is None else s.cell.k]
                + [csv_text(named[heading](s)) for heading in NAMES]
                + [getattr(s, count) for count in COUNTS]
                + [value for name in figures for value in (known.get(name) or (None,) * len(parts))]
            )
    return file.getvalue()
