"""Rows of categories, where prompts have some."""

from dataclasses import replace

from spsbench.reports.reporter import Report, Table


def in_categories(report: Report) -> bool:
    """Whether a prompt of it has a category."""
    return any(row.group for table in report.tables for row in table.rows)


def known_categories(report: Report) -> Report:
    """The report; without rows by category in tables whose prompts have none."""
    return replace(report, tables=[_known(table) for table in report.tables])


def _known(table: Table) -> Table:
    if any(row.group for row in table.rows):
        return table
    kept = [pair for pair in zip(table.rows, table.paper, strict=True) if pair[0].group is None]
    return replace(table, rows=[row for row, _ in kept], paper=[paper for _, paper in kept])
