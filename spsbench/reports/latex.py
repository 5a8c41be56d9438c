"""A table for a paper: `tabular` with booktabs rules."""

from collections.abc import Sequence

from spsbench.figures.summary import Summary
from spsbench.reports.body import body
from spsbench.reports.quoting import latex_text
from spsbench.reports.reporter import Title, remarks


def latex(rows: Sequence[Summary], title: Title) -> bytes:
    r"""UTF-8, to be `\input` in a document that loads booktabs."""
    headings, lines = body(rows)
    names = len(lines[0][0]) if lines else len(headings)
    figures = len(headings) - names
    caption = f"{title.run}: {title.task}" if title.task else title.run
    text = [
        r"\begin{table}",
        rf"\caption{{{latex_text(' '.join([caption + '.', *remarks(rows, title)]))}}}",
        rf"\begin{{tabular}}{{{'l' * names}{'r' * figures}}}",
        r"\toprule",
        _row(headings),
        r"\midrule",
        *(_row(named + values) for named, values in lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return ("\n".join(text) + "\n").encode()


def _row(cells: Sequence[str]) -> str:
    # a bracket after \\ would be read as its argument, so each row begins with an empty group
    return "{}" + " & ".join(latex_text(cell) for cell in cells) + r" \\"
