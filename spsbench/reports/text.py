"""Text formats: table body, escaping; Markdown, LaTeX, CSV, JSON, golden lengths; page escapes."""

import csv as writer
import json as encoder
import re
from collections.abc import Sequence
from html import escape as escape_html
from io import StringIO
from typing import Any

from spsbench.errors import UsageError
from spsbench.messages import visible
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import (
    ABSENT,
    DRAFT,
    MARK,
    NAMES,
    OPTIONS,
    TARGET,
    Column,
    PaperRow,
    Show,
    count_generations,
    full,
    names,
    paper_value,
)
from spsbench.reports.reporter import Report, Table, TextTable
from spsbench.settings.labels import method


def body(table: Table, show: Show = full, *, terse: bool = False) -> TextTable:
    """Return a table as text by `show`, with the paper's rows; `terse` shortens the counts.

    Names other than method and setting are omitted if all rows agree, to save width;
    machine-readable files keep them. A missing name (ArS has no draft) does not count as a
    difference.
    """
    named = [
        (heading, read)
        for heading, read in names(table.rows).items()
        if heading in ("method", "setting") or _differs(heading, {read(s) for s in table.rows})
    ]
    headings = [heading for heading, _ in named]
    rows: list[list[str]] = []
    paper_rows = []
    for s in table.rows:
        planned = table.planned(s.cell) if s.group is None and table.lack else None
        count = count_generations(s, planned, terse=terse)
        figures = [c.text(s, show) for c in table.columns]
        rows.append([*(read(s) for _, read in named), count, *figures])
        if (theirs := table.paper_row(s)) is not None:
            paper_names = _paper_names(theirs, s)
            names_of_row = [paper_names.get(heading, ABSENT) for heading in headings]
            figures = [_paper_figure(theirs, c) for c in table.columns]
            paper_rows.append(len(rows))
            rows.append([*names_of_row, str(theirs.sequences), *figures])
    columns = [*headings, "n", *(c.heading for c in table.columns)]
    names_of = len(headings) if rows else len(columns)
    return TextTable(str(table.title), columns, rows, table.remarks, names_of, paper_rows)


def _differs(heading: str, texts: set[str]) -> bool:
    """Return whether to show a column of names; `options` is empty unless rows differ."""
    return len(texts) > 1 if heading == OPTIONS else len(texts - {""}) > 1


def _paper_names(theirs: PaperRow, ours: Summary) -> dict[str, str]:
    """Return heading -> the paper's name for a row of its Table 1; others are n/a there."""
    return {
        "task": theirs.task,
        "target": TARGET,
        "draft": "" if ours.cell.k == 0 else DRAFT,
        "method": f"{method(ours.cell)} (Chinchilla)",
        "setting": theirs.setting,
    }


def _paper_figure(theirs: PaperRow, column: Column) -> str:
    value = paper_value(theirs, column.figure)
    return ABSENT if value is None else f"{value:.{column.digits}f}{column.unit}"


FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # full-width ones too
MARKDOWN = frozenset("\\`*_{}[]<>|#~&!")
LATEX_NAMES = {
    "\\": "backslash",
    "~": "asciitilde",
    "^": "asciicircum",
    "<": "less",
    ">": "greater",
}
LATEX = {c: f"\\{c}" for c in "{}$&#_%"} | {c: f"\\text{n}{{}}" for c, n in LATEX_NAMES.items()}


def csv_text(text: str) -> str:
    """Return text (no numbers) that spreadsheets do not evaluate: ' precedes a leading sign."""
    printable = visible(text)
    return f"'{printable}" if printable.lstrip().startswith(FORMULA) else printable


def markdown_text(text: str) -> str:
    """Escape text that Markdown or HTML would interpret, and the cell separator."""
    return "".join(f"\\{c}" if c in MARKDOWN else c for c in visible(text))


def latex_text(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(LATEX.get(c, c) for c in visible(text))


LONGEST = 400  # characters of one piece of text on a page
NEVER = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""Characters that could end a script element or open a comment in one; JSON has them in strings."""


def embed_json(data: Any) -> str:
    """Return ASCII JSON that cannot end the script element it is in; ValueError: NaN, infinity."""
    text = encoder.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(NEVER)


def markup(text: object) -> str:
    """Escape text between tags or in a quoted attribute."""
    return escape_html(visible(str(text)), quote=True)


def labels(names: Sequence[str], longest: int) -> list[str]:
    """Return names cut by `escape_piece`; equal names stay equal and distinct names distinct.

    A name is cut at its end if the result stays unique, else its prefix common to all names is
    shortened; a number separates names that are still equal.
    """
    truncated = [escape_piece(name, longest) for name in names]
    several = len(set(names))
    if len(set(truncated)) < several:
        pairs = enumerate(zip(min(names), max(names), strict=False))
        differs_at = next((at for at, (one, other) in pairs if one != other), 0)
        begin = max(0, differs_at - longest // 4)
        truncated = [escape_piece(f"…{name[begin:]}", longest) for name in names]
    if len(set(truncated)) < several:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}
        truncated = [
            f"{short} ({numbers[name]})" for short, name in zip(truncated, names, strict=True)
        ]
    return truncated


def escape_piece(text: str, longest: int = LONGEST) -> str:
    r"""Return a piece of a generation, invisible and bidi characters escaped but for \n and \t.

    Text longer than `longest` is cut, with its length behind it: `… (1,234 characters)`.
    """
    cut = text if len(text) <= longest else text[:longest]
    safe = "".join(c if c in "\n\t" else visible(c) for c in cut)
    return safe if cut is text else f"{safe}… ({len(text):,} characters)"


def report_markdown(report: Report) -> str:
    """Return title, tables and remarks in GitHub's Markdown; several tables share a main title."""
    text = "\n".join(map(_markdown_tables, report.tables))
    if len(report.tables) == 1:
        return text
    return f"# {markdown_text(report.title)}\n\n{text}"


def _markdown_tables(table: Table) -> str:
    """Return a table and its further ones as Markdown, with titles."""
    title = table.title
    text = [f"## {markdown_text(title.run)}", ""]
    text += [markdown_text(title.task), ""] if title.task else []
    text += _markdown_table(body(table))
    for further in table.further:
        text += ["", f"### {markdown_text(further.title)}", "", *_markdown_table(further)]
    return "\n".join(text) + "\n"


def _markdown_table(table: TextTable) -> list[str]:
    """Return the lines of a table, then its remarks as a list."""
    rows = [[*map(markdown_text, row[: table.names]), *row[table.names :]] for row in table.rows]
    rule = [":--" if i < table.names else "--:" for i in range(len(table.headings))]
    return [
        _markdown_row([markdown_text(h) for h in table.headings]),
        _markdown_row(rule),
        *map(_markdown_row, rows),
        "",
        *(f"- {markdown_text(line)}" for line in table.remarks),
    ]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


TIMES = re.compile(r"(\d)x\b")
SYMBOLS = {"alpha": r"$\alpha$", "tau": r"$\tau$", "tau/(K+1)": r"$\tau/(K+1)$"}
"""Headings in LaTeX; other headings are unchanged."""


def latex(report: Report) -> str:
    r"""Return LaTeX for `\input`, in booktabs style; each table is a float.

    The caption is short; the table's remarks are a note below it.
    """
    return "\n".join(map(_latex_table, report.tables))


def _latex_table(table: Table) -> str:
    """Return a table as a LaTeX float: run and task as caption, booktabs, remarks as a note."""
    text_table = body(table)
    names, figures = text_table.names, len(text_table.headings) - text_table.names
    text = [
        r"\begin{table}",
        rf"\caption[{{{latex_text(table.title.run)}}}]{{{latex_text(f'{text_table.title}.')}}}",
        rf"\begin{{tabular}}{{{'l' * names}{'r' * figures}}}",
        r"\toprule",
        _latex_row(
            [SYMBOLS.get(heading) or latex_text(heading) for heading in text_table.headings]
        ),
        r"\midrule",
        *(
            _latex_row([*map(latex_text, row[:names]), *map(_latex_figure, row[names:])])
            for row in text_table.rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\par\footnotesize {latex_text(' '.join(text_table.remarks))}",
        r"\end{table}",
    ]
    return "\n".join(text) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    # LaTeX would read a bracket after \\ as an argument, so each row begins with an empty group
    return "{}" + " & ".join(cells) + r" \\"


def _latex_figure(text: str) -> str:
    """Typeset a measured value: times sign and marker as symbols."""
    figure = latex_text(text)
    figure = TIMES.sub(r"\1$\\times$", figure)
    return f"{figure.removesuffix(MARK)}$^{{*}}$" if figure.endswith(MARK) else figure


SCHEMA = 7  # the version of summary.json
COUNTS = ("samples", "n", "failures", "cut", "timed", "loaded", "horizon")


def csv(report: Report) -> str:
    """Return CSV (RFC 4180): one row a cell, four columns a figure, all tables in one.

    `NAME` (the mean), `NAME.low`, `NAME.high` and `NAME.n` follow the run, the cell, its names and
    its counts. A figure that does not apply is empty. Numbers have full precision.
    """
    figures = list(dict.fromkeys(name for t in report.tables for s in t.rows for name in s.figures))
    named = names((row for table in report.tables for row in table.rows), whole=True)
    parts = ("mean", "low", "high", "n")
    file = StringIO()
    out = writer.writer(file)
    out.writerow(
        ["run", "cell", "k", *NAMES, *COUNTS, "planned"]
        + [
            csv_text(name if part == "mean" else f"{name}.{part}")
            for name in figures
            for part in parts
        ]
    )
    for table in report.tables:
        for s in table.rows:
            estimates = s.figures
            out.writerow(
                [csv_text(table.title.run), s.cell.id, "" if s.cell.k is None else s.cell.k]
                + [csv_text(named[heading](s)) for heading in NAMES]
                + [getattr(s, count) for count in COUNTS]
                + [table.planned(s.cell) if s.group is None else None]
                + [
                    value
                    for name in figures
                    for value in (estimates.get(name) or (None,) * len(parts))[: len(parts)]
                ]
            )
    return file.getvalue()


def json(report: Report) -> str:
    """Return `summary.json` in ASCII: figures with intervals, null if not applicable.

    Several tables become an array. Raises ValueError for a figure that is not finite.
    """
    tables = [_json_table(table) for table in report.tables]
    content = tables[0] if len(tables) == 1 else tables
    return encoder.dumps(content, indent=2, allow_nan=False) + "\n"


def _json_table(table: Table) -> dict[str, object]:
    """Return a table as plain values, with identity, remarks, figures by seed, and rows."""
    return {
        "schema": SCHEMA,
        "run": table.title.run,
        "task": table.title.task,
        **table.identity,
        "remarks": list(table.remarks),
        "seeds": [
            {
                "k": seed_row.cell.k,
                "cell": seed_row.cell.id,
                "seeds": seed_row.seeds,
                "metrics": {name: value.to_json() for name, value in seed_row.figures.items()},
            }
            for seed_row in table.seeds
        ],
        "rows": [_json_row(s, table.paper_row(s)) for s in table.rows],
    }


def _json_row(summary: Summary, paper: PaperRow | None) -> dict[str, object]:
    """Return a row as nested plain values: `metrics` has all figures; `paper` None: no such row."""
    return {
        "id": summary.cell.id,
        "k": summary.cell.k,
        "group": summary.group,
        "cell": summary.cell.to_json(),
        **{count: getattr(summary, count) for count in COUNTS},
        "spread_ms": summary.spread,
        "metrics": {
            name: estimate.to_json() if estimate else None
            for name, estimate in summary.figures.items()
        },
        "paper": paper._asdict() if paper else None,
    }


ENDS = "</think>"


def golden(report: Report) -> str:
    """Return mean lengths of rounds as YAML of InferenceX's golden lengths: model, mode, K -> mean.

    A mean is 1 + accepted / rounds, of two decimals, of rows of a constant K that have rounds. The
    mode is `thinking_on` where one of a row's texts has `</think>`, else `thinking_off`. Names in
    which rows differ, as of task and setting, stand behind each model's. A comment counts drafting
    rows that are left out. UsageError: all of them.
    """
    import yaml

    drafting = [(table, s) for table in report.tables for s in table.whole if s.cell.k != 0]
    rows = [(table, s) for table, s in drafting if s.cell.k and s.accepted_length]
    if not rows:
        raise UsageError("no row of a constant K above 0: expected one, for golden lengths")
    readers = [read for name, read in names(s for _, s in rows).items() if name != "target"]
    labels = [
        (table.title.run, *(read(s).removesuffix(f" K={s.cell.k}") for read in readers))
        for table, s in rows
    ]
    differing = [at for at, texts in enumerate(zip(*labels, strict=True)) if len({*texts}) > 1]
    thoughtful = {r.cell for table in report.tables for r in table.records() if ENDS in r.text}
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for (_, s), label in zip(rows, labels, strict=True):
        if s.cell.k and s.accepted_length:
            model = ", ".join([str(s.cell.target), *(label[at] for at in differing if label[at])])
            mode = "thinking_on" if s.cell.id in thoughtful else "thinking_off"
            curve = curves.setdefault(model, {}).setdefault(mode, {})
            curve[s.cell.k] = round(1 + s.accepted_length.mean, 2)
    head = "# Mean tokens of a round, 1 + accepted / rounds, by K: measured by sps bench\n"
    if lacking := len(drafting) - len(rows):
        head += f"# Left out: {lacking} rows without rounds or a constant K\n"
    written: str = yaml.safe_dump(curves, sort_keys=False, allow_unicode=True, width=1000)
    return head + written
