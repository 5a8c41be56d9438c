"""Tables for a paper: `tabular` with booktabs rules."""

import re
from collections.abc import Sequence

from spsbench.reports.body import body
from spsbench.reports.columns import MARK
from spsbench.reports.quoting import latex_text
from spsbench.reports.reporter import Report, Table

TIMES = re.compile(r"(\d)x\b")
SYMBOLS = {
    "alpha": r"$\alpha$",
    "tau": r"$\tau$",
    "tau/(K+1)": r"$\tau/(K+1)$",
}
"""Headings as a paper writes them; others as they are."""


def latex(report: Report) -> str:
    r"""To be `\input` in a document that loads booktabs; each table floats on its own.

    The caption is short; what a table stands on is a note below it.
    """
    return "\n".join(map(_table, report.tables))


def _table(table: Table) -> str:
    headings, lines = body(table)
    names = len(lines[0][0]) if lines else len(headings)
    figures = len(headings) - names
    text = [
        r"\begin{table}",
        rf"\caption[{{{latex_text(table.title.run)}}}]{{{latex_text(f'{table.title}.')}}}",
        rf"\begin{{tabular}}{{{'l' * names}{'r' * figures}}}",
        r"\toprule",
        _line([SYMBOLS.get(heading) or latex_text(heading) for heading in headings]),
        r"\midrule",
        *(_line([*map(latex_text, named), *map(_figure, values)]) for named, values, *_ in lines),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\par\footnotesize {latex_text(' '.join(table.remarks))}",
        r"\end{table}",
    ]
    return "\n".join(text) + "\n"


def _line(cells: Sequence[str]) -> str:
    # a bracket after \\ would be read as its argument, so each row begins with an empty group
    return "{}" + " & ".join(cells) + r" \\"


def _figure(text: str) -> str:
    """A measured value: its times sign and its mark as symbols."""
    shown = latex_text(text)
    shown = TIMES.sub(r"\1$\\times$", shown)
    return f"{shown.removesuffix(MARK)}$^{{*}}$" if shown.endswith(MARK) else shown
