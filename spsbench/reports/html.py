"""Self-contained HTML page of a report: answers, plots, tables, and generations by token."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.reports.page.answer import (
    answered,
    answers,
    exhibited,
    findings,
    html_table,
    tabled,
)
from spsbench.reports.page.data import aggregated, compared, paired_runs, run_names, to_read
from spsbench.reports.page.exhibits import exhibits, of_section
from spsbench.reports.reporter import Report, Section, Table
from spsbench.reports.text import embedded, markup

ASSETS = Path(__file__).parent / "page" / "assets"
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
    """Return the page of a report; equal records give equal bytes."""
    tables = report.tables
    names, aggregates = run_names(tables), aggregated(tables)
    answered_by_section = any(section.answers for section in report.sections)
    traces, selection = to_read(aggregates, names)
    cards = []
    plots = [
        exhibited(figure)
        for number, section in enumerate(report.sections)
        for figure in of_section(section, number)
    ]
    pairs = paired_runs(tables, aggregates, names)
    if pairs:
        figure, differences = compared(pairs, names[0])
        plots += [exhibited(figure) if figure else "", html_table(differences)]
    for number, (table, sums, name) in enumerate(zip(tables, aggregates, names, strict=True)):
        for figure in exhibits(table, sums.times, answered=answered_by_section):
            title = f"{name}: {figure.title}" if name else figure.title
            key = f"{figure.id}-{number}" if number else figure.id
            plots.append(exhibited(replace(figure, id=key, title=title)))
        if not answered_by_section:
            same = {cell.id: table.greedy.same(cell) for cell in sums.cells.values()}
            audits = {s.cell: s for s in report.sections if s.run == table.title.run and s.cell}
            cards += [answer._replace(run=name) for answer in answers(table, same, audits)]
    numbers = "".join(map(tabled, tables))
    runs = [f"{name}: {t.title.run}" for name, t in zip(names, tables, strict=True) if name]
    parts = [
        _lacking(tables),
        answered(cards, report.sections),
        *plots,
        '<section id="viewer" aria-label="Texts, token by token"></section>',
        findings(report.sections),
        f'<section><h2 id="numbers">All figures</h2>{numbers}</section>' if numbers else "",
    ]
    data = {"selection": selection, "traces": list(traces)}
    return page(report.title, _about(tables, runs), parts, data)


def trace_page(
    title: str, traces: Iterable[Mapping[str, Any]], about: Mapping[str, str], lines: Sequence[str]
) -> str:
    """Return a page of generations only, with a description `about` and notes `lines`."""
    data = {"selection": "", "traces": list(traces)}
    notes = "".join(f"<li>{markup(line)}</li>" for line in lines)
    parts = [
        f'<section class="answer"><ul class="notes">{notes}</ul></section>' if notes else "",
        '<section id="viewer" aria-label="The text, token by token"></section>',
    ]
    return page(title, _facts(about), parts, data)


def static_page(title: str, sections: Sequence[Section], about: Mapping[str, str]) -> str:
    """Return a page of findings and their tables without any script, to paste into an issue."""
    return page(title, _facts(about), [answered([], sections), findings(sections)], None)


def page(title: str, about: str, parts: Sequence[str], data: Mapping[str, Any] | None) -> str:
    """Return the document around `parts`; only the script of this package may run.

    The content security policy allows no network requests, so opening the page sends nothing. A
    page without `data` has no script.
    """
    style = (ASSETS / "page.css").read_text("utf-8")
    scripts, allowed = "", "'none'"
    if data is not None:
        script = "".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
        allowed = _digest(script)
        scripts = (
            f'<script id="data" type="application/json">{embedded(data)}</script>\n'
            f"<script>{script}</script>\n"
        )
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{markup(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the figures</a>\n'
        f"<header><h1>{markup(title)}</h1>{about}</header>\n"
        f'<main id="main">{"".join(parts)}</main>\n'
        "<footer><p>Made by spsbench. This file needs no network and asks for none.</p></footer>\n"
        f"{scripts}</body>\n</html>\n"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _about(tables: Sequence[Table], runs: Sequence[str]) -> str:
    """Return the provenance as HTML: models, tasks, machine, time and commit."""
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
    return _facts({name: "; ".join(v for v in values if v) for name, values in seen.items()})


def _lacking(tables: Sequence[Table]) -> str:
    """Return the lead of a page with interrupted runs: what each lacks; empty if all are whole."""
    lines = {
        f"{table.title.run}: {table.progress.remark}" if len(tables) > 1 else table.progress.remark
        for table in tables
        if table.progress is not None and not table.progress.whole
    }
    return "".join(f'<p class="lack">{markup(line)}</p>' for line in sorted(lines))


def _facts(about: Mapping[str, str]) -> str:
    rows = (f"<div><dt>{name}</dt><dd>{markup(v)}</dd></div>" for name, v in about.items() if v)
    return f'<dl class="facts">{"".join(rows)}</dl>'
