"""A table in GitHub's Markdown."""

from collections.abc import Sequence

from spsbench.figures.summary import Summary
from spsbench.reports.body import body
from spsbench.reports.quoting import markdown_text
from spsbench.reports.reporter import Title, remarks


def markdown(rows: Sequence[Summary], title: Title) -> bytes:
    """UTF-8, with a heading, the table, and what it stands on below it."""
    headings, lines = body(rows)
    text_rows = [[markdown_text(name) for name in names] + figures for names, figures in lines]
    names = len(lines[0][0]) if lines else len(headings)
    rule = [":--" if i < names else "--:" for i in range(len(headings))]
    text = [f"## {markdown_text(title.run)}", ""]
    text += [markdown_text(title.task), ""] if title.task else []
    text += [_row([markdown_text(h) for h in headings]), _row(rule), *map(_row, text_rows), ""]
    text += [f"- {markdown_text(line)}" for line in remarks(rows, title)]
    return ("\n".join(text) + "\n").encode()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
