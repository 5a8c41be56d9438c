"""Self-contained HTML page of a report: answers, plots, tables, and generations by token."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from spsbench.reports.page.answer import ASSETS, HTML, answers, figure_html, table_html
from spsbench.reports.page.data import (
    aggregate_tables,
    paired_runs,
    run_differences,
    run_names,
    to_read,
)
from spsbench.reports.page.exhibits import exhibits, of_section
from spsbench.reports.reporter import Report, Section, Table
from spsbench.reports.text import embed_json, markup

SCRIPTS = (
    "elements.js",
    "lesson.js",
    "story.js",
    "tree.js",
    "aligned.js",
    "timeline.js",
    "viewer.js",
    "page.js",
)


def html(report: Report) -> str:
    """Return the page of a report; equal records give equal bytes.

    Records are read once. Answers and findings stand before plots, texts by token and tables; of
    several runs the later ones are compared with the first.
    """
    tables = report.tables
    names, aggregates = run_names(tables), aggregate_tables(tables)
    answered_by_section = any(section.answers for section in report.sections)
    traces, selection = to_read(aggregates, names)
    cards = []
    plots = [
        figure_html(figure)
        for number, section in enumerate(report.sections)
        for figure in of_section(section, number)
    ]
    pairs = paired_runs(tables, aggregates, names)
    if pairs:
        figure, differences = run_differences(pairs, names[0])
        plots += [figure_html(figure) if figure else Markup(), HTML.table(differences)]
    for number, (table, sums, name) in enumerate(zip(tables, aggregates, names, strict=True)):
        for figure in exhibits(table, sums.times, answered=answered_by_section):
            title = f"{name}: {figure.title}" if name else figure.title
            key = f"{figure.id}-{number}" if number else figure.id
            plots.append(figure_html(replace(figure, id=key, title=title)))
        if not answered_by_section:
            same = {cell.id: table.greedy.same(cell) for cell in sums.cells.values()}
            audits = {s.cell: s for s in report.sections if s.run == table.title.run and s.cell}
            cards += [answer._replace(run=name) for answer in answers(table, same, audits)]
    numbers = Markup().join(map(table_html, tables))
    runs = [f"{name}: {t.title.run}" for name, t in zip(names, tables, strict=True) if name]
    parts = [
        _lacking(tables),
        HTML.answered(cards, report.sections),
        *plots,
        HTML.viewer("Texts, token by token"),
        HTML.findings(report.sections),
        Markup(f'<section><h2 id="numbers">All figures</h2>{numbers}</section>' * bool(numbers)),
    ]
    data = {"selection": selection, "traces": list(traces)}
    return html_document(report.title, _about(tables, runs), parts, data)


def trace_page(
    title: str, traces: Iterable[Mapping[str, Any]], about: Mapping[str, str], lines: Sequence[str]
) -> str:
    """Return a page to step through `traces`, with a description `about` and notes `lines`."""
    data = {"selection": "", "traces": list(traces)}
    notes = [Markup(f'<section class="answer">{HTML.items("notes", lines)}</section>')]
    parts = [*notes * bool(lines), HTML.viewer("The text, token by token")]
    return html_document(title, about, parts, data)


def static_page(title: str, sections: Sequence[Section], about: Mapping[str, str]) -> str:
    """Return a page of findings and their tables without any script, to paste into an issue."""
    parts = [HTML.answered([], sections), HTML.findings(sections)]
    return html_document(title, about, parts, None)


def html_document(
    title: str, about: Mapping[str, str], parts: Sequence[Markup], data: Mapping[str, Any] | None
) -> str:
    """Return the document around `parts`; only the script of this package may run.

    The content security policy allows no network requests, so opening the page sends nothing. A
    page without `data` has no script.
    """
    style, script, allowed = (ASSETS / "page.css").read_text("utf-8"), "", "'none'"
    if data is not None:
        script = "".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
        allowed = _digest(script)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    written = map(Markup, (policy, style, embed_json(data), script))
    return str(HTML.document(title, about, parts, *written))


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _about(tables: Sequence[Table], runs: Sequence[str]) -> dict[str, str]:
    """Return runs, data, models ... -> distinct values of all tables, joined by `; `, maybe ""."""
    seen: dict[str, dict[str, None]] = {"runs": dict.fromkeys(runs)}
    for table in tables:
        seen.setdefault("data", {})[table.title.task] = None
        models = {str(model) for row in table.rows for model in row.cell.models}
        seen.setdefault("models", {})[", ".join(sorted(models))] = None
        for start in table.starts:
            hardware, git = start.provenance.hardware, start.provenance.git
            seen.setdefault("started", {})[f"{start.started:%Y-%m-%dT%H:%M}"] = None
            if git is not None:
                changed = ", with changes" if git.diff else ""
                seen.setdefault("commit", {})[f"{git.commit[:12]}{changed}"] = None
            if hardware:
                machine = f"{hardware.get('cpu')}, {hardware.get('cores')} cores"
                seen.setdefault("machine", {})[machine] = None
            versions = start.provenance.versions
            named = [
                f"{name} {versions[name]}" for name in ("spsbench", "torch") if name in versions
            ]
            seen.setdefault("versions", {})[", ".join(named)] = None
    return {name: "; ".join(v for v in values if v) for name, values in seen.items()}


def _lacking(tables: Sequence[Table]) -> Markup:
    """Return the lead of a page with interrupted runs: what each lacks; empty if all are whole."""
    lines = {
        f"{table.title.run}: {table.progress.remark}" if len(tables) > 1 else table.progress.remark
        for table in tables
        if table.progress is not None and not table.progress.whole
    }
    return Markup().join(Markup(f'<p class="lack">{markup(line)}</p>') for line in sorted(lines))
