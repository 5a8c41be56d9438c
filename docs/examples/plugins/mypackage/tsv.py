"""A reporter: tab-separated means."""

from spsbench.reports.reporter import Report


def tsv(report: Report) -> str:
    """Tab-separated means: one line a cell."""
    lines = ["\t".join(["run", "K", *(c.heading for c in report.tables[0].columns)])]
    for table in report.tables:
        for row in table.rows:
            found = [row.figures.get(c.figure) for c in table.columns]
            means = ["" if estimate is None else f"{estimate.mean:g}" for estimate in found]
            lines.append("\t".join([table.title.run, str(row.cell.k), *means]))
    return "\n".join(lines) + "\n"
