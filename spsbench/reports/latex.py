"""Tables for a paper: `tabular` with booktabs rules."""

from collections.abc import Sequence

from spsbench.reports.body import body
from spsbench.reports.quoting import latex_text
from spsbench.reports.reporter import Report, Table


def latex(report: Report) -> str:
    r"""To be `\input` in a document that loads booktabs; each table floats on its own."""
    return "\n".join(map(_table, report.tables))


def _table(table: Table) -> str:
    headings, lines = body(table)
    names = len(lines[0][0]) if lines else len(headings)
    figures = len(headings) - names
    text = [
        r"\begin{table}",
        rf"\caption{{{latex_text(' '.join([f'{table.title}.', *table.remarks]))}}}",
        rf"\begin{{tabular}}{{{'l' * names}{'r' * figures}}}",
        r"\toprule",
        _row(headings),
        r"\midrule",
        *(_row(named + values) for named, values in lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(text) + "\n"


def _row(cells: Sequence[str]) -> str:
    # a bracket after \\ would be read as its argument, so each row begins with an empty group
    return "{}" + " & ".join(latex_text(cell) for cell in cells) + r" \\"
