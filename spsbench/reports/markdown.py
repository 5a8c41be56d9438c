"""Tables in GitHub's Markdown."""

from collections.abc import Sequence

from spsbench.reports.body import body
from spsbench.reports.quoting import markdown_text
from spsbench.reports.reporter import Report, Table


def markdown(report: Report) -> str:
    """A heading, the table, and what it stands on below it; of several, one title above all."""
    text = "\n".join(map(_table, report.tables))
    if len(report.tables) == 1:
        return text
    return f"# {markdown_text(report.title)}\n\n{text}"


def _table(table: Table) -> str:
    headings, lines = body(table)
    title = table.title
    text_rows = [[markdown_text(name) for name in names] + figures for names, figures, *_ in lines]
    names = len(lines[0][0]) if lines else len(headings)
    rule = [":--" if i < names else "--:" for i in range(len(headings))]
    text = [f"## {markdown_text(title.run)}", ""]
    text += [markdown_text(title.task), ""] if title.task else []
    text += [_row([markdown_text(h) for h in headings]), _row(rule), *map(_row, text_rows), ""]
    text += [f"- {markdown_text(line)}" for line in table.remarks]
    return "\n".join(text) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
