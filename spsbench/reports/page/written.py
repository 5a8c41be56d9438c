"""The parts of a page that are written out: answers, findings, tables."""

from collections.abc import Sequence

from spsbench.reports.body import body
from spsbench.reports.columns import full
from spsbench.reports.page.answer import Answer
from spsbench.reports.page.definitions import define
from spsbench.reports.page.safe import markup
from spsbench.reports.reporter import Table
from spsbench.reports.sheet import Grid, Sheet


def answered(answers: Sequence[Answer], sheets: Sequence[Sheet]) -> str:
    """The answer first, in words."""
    cards = "".join(
        f'<article class="card">{f"<p class=run>{markup(a.run)}</p>" if a.run else ""}'
        f"<h3>{markup(a.name)}</h3>"
        f'<p class="figure"><b>{a.figure}</b> <span>{markup(a.method)} over ArS<br>'
        f"{markup(a.interval)}</span></p><ul>"
        + "".join(
            f'<li class="{said.mood}">{markup(said.text)}</li>'
            for said in (a.speed, a.lossless, a.quality)
        )
        + "</ul></article>"
        for a in answers
    )
    cards += "".join(map(_finding, sheets))
    told = cards or "<p>No speculative method in these runs: nothing to compare with ArS.</p>"
    return f'<section class="answer"><h2>The answer</h2><div class="cards">{told}</div></section>'


def tabled(table: Table, first: int) -> str:
    """All figures; `first` is the number of its first row on the page."""
    headings, lines = body(table, full)
    figures = {column.heading: column.figure for column in table.columns}
    names = len(lines[0].names) if lines else 0
    head = "".join(
        f'<th scope="col"{" class=left" if i < names else ""} '
        f'title="{markup(define(figures.get(h, h)))}">{markup(h)}</th>'
        for i, h in enumerate(headings)
    )
    rows = "".join(
        f'<tr{" class=paper" if line.paper else ""} data-row="{first + line.row}">'
        + "".join(f'<th scope="row">{markup(name)}</th>' for name in line.names)
        + "".join(f"<td>{markup(cell)}</td>" for cell in line.figures)
        + "</tr>"
        for line in lines
    )
    remarks = "".join(f"<li>{markup(line)}</li>" for line in table.remarks)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="All figures">'
        f"<table><caption>{markup(table.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<ul class="remarks">{remarks}</ul>'
    )


def _finding(sheet: Sheet) -> str:
    notes = "".join(f"<li>{markup(note)}</li>" for note in sheet.notes)
    run = f"<p class=run>{markup(sheet.run)}</p>" if sheet.run else ""
    return (
        f'<article class="card finding">{run}<h3>{markup(sheet.title)}</h3>'
        f'<ul><li class="{sheet.mood}">{markup(sheet.line)}</li></ul>'
        f'<ul class="notes">{notes}</ul></article>'
    )


def found(sheets: Sequence[Sheet]) -> str:
    """The tables of findings."""
    parts = [
        f"<section><h2>{markup(sheet.title)}</h2>{''.join(map(_grid, sheet.grids))}</section>"
        for sheet in sheets
        if sheet.grids
    ]
    return "".join(parts)


def _grid(grid: Grid) -> str:
    head = "".join(
        f'<th scope="col"{" class=left" if i < grid.names else ""}>{markup(name)}</th>'
        for i, name in enumerate(grid.headings)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{markup(cell)}</th>' if i < grid.names else f"<td>{markup(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in grid.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{markup(grid.caption)}">'
        f"<table><caption>{markup(grid.caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
