"""Data of the page: all numbers that its script draws are computed here."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.batch_figures import batch_figure
from spsbench.reports.columns import group
from spsbench.reports.figures import Section
from spsbench.reports.page import exhibits as e
from spsbench.reports.page.answer import DEFINITIONS, Answer, answers, define
from spsbench.reports.page.escape import labels, shown
from spsbench.reports.page.exhibits import (
    OF_CATEGORY,
    PROMPTS,
    TOKENS,
    TableSums,
    latency,
    percentiles,
)
from spsbench.reports.page.paired import Exhibit, Pairing, Side, against_k, beside, drawn, pairings
from spsbench.reports.page.token_origins import Trace, tokenizer_of, trace
from spsbench.reports.reporter import Report, Table
from spsbench.reports.text import visible
from spsbench.settings.labels import Names


def to_read(
    summed: Sequence[tuple[Table, TableSums]],
    index: dict[tuple[int, str, str | None], int],
    called: Mapping[int, str],
) -> tuple[list[Trace], str]:
    """Return the generations to show, and a sentence about their selection."""
    traces: list[Trace] = []
    tokenizers: dict[str, Any] = {}
    for table, sums in summed:
        names = Names(sums.cells.values())
        numbers: dict[str, int] = {}
        for record in sums.kept:
            cell = sums.cells[record.cell]
            target = cell.target
            if target.id not in tokenizers:
                tokenizers[target.id] = None if target.random else tokenizer_of(target)
            number = numbers.setdefault(record.sample, len(numbers) + 1)
            parts = [called[id(table)], names.work(cell), f"prompt {number}"]
            traces.append(
                trace(
                    record,
                    name=names.how(cell),
                    group=", ".join(part for part in parts if part),
                    row=index[id(table), record.cell, None],
                    category=None if record.group is None else visible(record.group or "none"),
                    tokenizer=tokenizers[target.id],
                )
            )
    texts = sum(sums.texts for _, sums in summed)
    text = f"{len(traces):,} of {texts:,} generations can be read here"
    if len(traces) < texts:
        text += f": the first {PROMPTS} prompts of each task and setting, one text each"
        if any(generation.category is not None for generation in traces):
            text += f", or {OF_CATEGORY} of each category"
    return traces, f"{text}."


LINE = 240  # characters of a name
PARAGRAPH = 2000
SHORT = 20  # characters of a run's name next to row names


Place = tuple[int, str, str | None]
"""Position of a row: identity of its table, cell, category."""


class Content(NamedTuple):
    """Content of a page of runs."""

    answers: list[Answer]
    data: dict[str, Any]
    runs: list[str]  # name and title of each table; empty for a single table


def content(report: Report) -> Content:
    """Read every record of the report again and return the content of the page by table."""
    rows = [(table, row) for table in report.tables for row in table.rows]
    summaries = [row for _, row in rows]
    called = labels_of(report.tables)
    names_of = {id(table): Names(row.cell for row in table.rows) for table in report.tables}
    names = labels(
        [_name(called[id(table)], names_of[id(table)], row) for table, row in rows], LINE
    )
    works = labels(
        [_work(called[id(table)], names_of[id(table)], row) for table, row in rows], LINE
    )
    settings = labels([names_of[id(table)].setting(row.cell) for table, row in rows], LINE)
    methods = labels([names_of[id(table)].how(row.cell) for table, row in rows], LINE)
    tasks = labels([str(row.cell.task or "") for _, row in rows], LINE)
    index = {(id(table), row.cell.id, row.group): i for i, (table, row) in enumerate(rows)}
    summed = _summed(report.tables)

    times = _times(summed, index)
    by_run = [
        (called[id(table)], _indexed(rows, table, of))
        for table in report.tables
        for of in dict.fromkeys(row.group for row in table.rows)
    ]
    papers = [paper for table in report.tables for paper in table.paper]
    whole = any(section.answers for section in report.sections)
    rowed = [(pairing, _row(pairing, summed, index, called)) for pairing in _paired(summed, called)]
    exhibits = [
        *_of_sections(report.sections),
        *(() if whole else against_k(by_run)),
        *(() if whole else _by_batch(report.tables)),
        *e.headlines(summaries, papers),
        *beside(rowed),
        *e.by_position(summaries, names),
        *latency(times, dict(enumerate(names))),
        *e.parts_of_round(summaries),
        *e.speed_and_quality(summaries, papers),
        *e.predicted(summaries),
    ]
    traces, chosen = to_read(summed, index, called)
    data = {
        "rows": [
            {
                "name": names[i],
                "run": called[id(table)],
                "work": works[i],
                "task": tasks[i],
                "category": None if row.group is None else visible(group(row)),
                "setting": settings[i],
                "method": methods[i],
                "k": row.cell.k,
                "cell": row.cell.id,
                "n": row.n,
                "samples": row.samples,
                "failures": row.failures,
                "figures": {visible(name): _estimate(v) for name, v in row.figures.items()},
                "percentiles": percentiles(times[i]) if i in times else None,
            }
            for i, (table, row) in enumerate(rows)
        ],
        "exhibits": [exhibit.to_json() for exhibit in exhibits],
        "definitions": {**DEFINITIONS, **_defined(exhibits)},
        "pairings": [
            _plain_pairing(pairing, called[id(summed[0][0])], row) for pairing, row in rowed
        ],
        "traces": [generation.to_json() for generation in traces],
        "told": chosen,
    }
    first = []
    for table, sums in () if whole else summed:
        same = {c.id: sums.same(c) for c in sums.cells.values()}
        audits = {s.cell: s for s in report.sections if s.run == table.title.run and s.cell}
        first += [answer._replace(run=called[id(table)]) for answer in answers(table, same, audits)]
    several = [f"{called[id(t)]}: {t.title.run}" for t in report.tables if called[id(t)]]
    return Content(first, data, several)


def labels_of(tables: Sequence[Table]) -> dict[int, str]:
    """Return a short name by table identity: the table's own name, or a number."""
    names = [shown(table.title.run, LINE) for table in tables]
    short = len(set(names)) == len(names) and max(map(len, names), default=0) <= SHORT
    named = names if short else [f"run {number}" for number in range(1, len(names) + 1)]
    return {id(t): name if len(names) > 1 else "" for t, name in zip(tables, named, strict=True)}


def _summed(tables: Sequence[Table]) -> list[tuple[Table, TableSums]]:
    """Return each table that has records of its own, with those records aggregated."""
    numbers: dict[str, int] = {}
    whole = [table for table in tables if not table.part]
    summed = []
    for table in whole:
        cells = {row.cell.id: row.cell for row in table.rows}
        sums = TableSums(cells.values(), numbers, TOKENS // len(whole))
        for record in table.records():
            sums.add(record)
        summed.append((table, sums))
    return summed


def _indexed(
    rows: Sequence[tuple[Table, Summary]], table: Table, of: str | None
) -> list[tuple[int, Summary]]:
    return [
        (i, row)
        for i, (row_table, row) in enumerate(rows)
        if row_table is table and row.group == of
    ]


def _times(
    summed: Sequence[tuple[Table, TableSums]], index: Mapping[Place, int]
) -> dict[int, "array[float]"]:
    """Map each row to the mean token times of its generations; category rows have their own."""
    times: dict[int, array[float]] = {}
    for table, sums in summed:
        if table.title.timed:
            times |= {
                index[id(table), cell, None]: token_times
                for cell, token_times in sums.times.items()
            }
            for (cell, of), token_times in sums.by_group.items():
                if (id(table), cell, of) in index:
                    times[index[id(table), cell, of]] = token_times
    return times


def _of_sections(sections: Sequence[Section]) -> list[Exhibit]:
    """Return the figures of findings, each titled by its finding."""
    return [
        exhibit
        for number, section in enumerate(sections)
        for at, figure in enumerate(section.figures)
        for exhibit in drawn(
            figure,
            id=f"sheet-{number}-{at}",
            title=shown(section.title, LINE),
            says=shown(section.says or section.line, PARAGRAPH),
        )
    ]


def _by_batch(tables: Sequence[Table]) -> list[Exhibit]:
    """Return the figures by batch of runs that have some."""
    figures = [(at, batch_figure(table)) for at, table in enumerate(tables)]
    return [
        exhibit
        for at, figure in figures
        if figure is not None
        for exhibit in drawn(
            figure,
            id=f"by-batch-{at}",
            title=shown(f"By batch: {tables[at].title.run}", LINE),
            says="The gain over plain sampling in the same batch; and the tokens a second of the "
            "machine against those of one user, a point for each batch.",
        )
    ]


def _paired(summed: Sequence[tuple[Table, TableSums]], called: Mapping[int, str]) -> list[Pairing]:
    sides = [
        Side(
            called[id(table)],
            {cell: (sums.cells[cell], tally) for cell, tally in sums.tallies.items()},
            table.qualities,
            {cell: sums.greedy.of(cell) for cell in sums.cells},
        )
        for table, sums in summed
    ]
    return pairings(sides[0], sides[1:]) if len(sides) > 1 else []


def _row(
    pairing: Pairing,
    summed: Sequence[tuple[Table, TableSums]],
    index: Mapping[Place, int],
    called: Mapping[int, str],
) -> int:
    table = next(table for table, _ in summed if called[id(table)] == pairing.run)
    return index[id(table), pairing.cell, None]


def _plain_pairing(pairing: Pairing, base: str, row: int) -> dict[str, Any]:
    return {
        "name": shown(pairing.name, LINE),
        "run": pairing.run,
        "row": row,
        "base": base,
        "shared": pairing.shared,
        "faster": _estimate(pairing.faster),
        "tau": _estimate(pairing.tau),
        "quality": [
            [visible(parity.metric), _estimate(parity.shown), str(parity)]
            for parity in pairing.quality
        ],
    }


def _defined(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    return {term: define(term) for exhibit in exhibits for term in exhibit.terms}


def _estimate(estimate: Estimate | None) -> list[float | None] | None:
    return None if estimate is None else list(estimate)


def _work(called: str, names: Names, row: Summary) -> str:
    parts = [called, names.work(row.cell), "" if row.group is None else group(row)]
    return ", ".join(part for part in parts if part)


def _name(called: str, names: Names, row: Summary) -> str:
    return ", ".join(part for part in (_work(called, names, row), names.how(row.cell)) if part)
