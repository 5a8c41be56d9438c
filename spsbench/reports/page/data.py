"""A report as the data of a page: every number that its script draws is made here."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spsbench.figures.intervals import Estimate
from spsbench.figures.summary import Summary
from spsbench.reports.columns import group
from spsbench.reports.page import exhibits as e
from spsbench.reports.page.answer import Answer, answers
from spsbench.reports.page.by_k import against_k
from spsbench.reports.page.definitions import DEFINITIONS, define
from spsbench.reports.page.gathered import PROMPTS, TOKENS, Gathered, latency, percentiles
from spsbench.reports.page.marks import Exhibit
from spsbench.reports.page.paired import pairings
from spsbench.reports.page.safe import shown
from spsbench.reports.page.traces import Trace, tokenizer_of, trace
from spsbench.reports.quoting import visible
from spsbench.reports.reporter import Report, Table
from spsbench.settings.names import method, setting

LINE = 120  # characters of a name
SHORT = 20  # of a run's, beside those of its rows


class Content(NamedTuple):
    """What a page of runs shows."""

    answers: list[Answer]
    data: dict[str, Any]
    runs: list[str]  # what each table is called on the page, and its title; none for a single one


def content(report: Report) -> Content:
    """Read every record of the report once more; of each table what a page shows."""
    rows = [(table, row) for table in report.tables for row in table.rows]
    summaries = [row for _, row in rows]
    called = labels(report.tables)
    names = [_name(called[id(table)], row) for table, row in rows]
    index = {(id(table), row.cell.id, row.group): i for i, (table, row) in enumerate(rows)}
    gathered = _gathered(report.tables)

    times = {
        index[id(table), cell, None]: values
        for table, found in gathered
        if table.title.timed
        for cell, values in found.times.items()
    }
    by_run = [
        (called[id(table)], _indexed(rows, table, of))
        for table in report.tables
        for of in dict.fromkeys(row.group for row in table.rows)
    ]
    drawn = [
        *against_k(by_run),
        *e.headlines(summaries),
        *e.by_position(summaries, names),
        *latency(times, dict(enumerate(names))),
        *e.parts_of_round(summaries),
        *e.speed_and_quality(summaries),
        *e.predicted(summaries),
    ]
    traces, told = _traces(gathered, index, called)
    data = {
        "rows": [
            {
                "name": names[i],
                "run": called[id(table)],
                "task": shown(str(row.cell.work.task or ""), LINE),
                "category": None if row.group is None else visible(group(row)),
                "setting": shown(setting(row.cell), LINE),
                "method": shown(method(row.cell), LINE),
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
        "exhibits": [each.to_json() for each in drawn],
        "definitions": {**DEFINITIONS, **_defined(drawn)},
        "pairings": _pairings(gathered, called),
        "traces": [each.to_json() for each in traces],
        "told": told,
    }
    first = [
        answer._replace(run=called[id(table)])
        for table, found in gathered
        for answer in answers(table, {c.id: found.same(c) for c in found.cells.values()})
    ]
    several = [f"{called[id(t)]}: {t.title.run}" for t in report.tables if called[id(t)]]
    return Content(first, data, several)


def labels(tables: Sequence[Table]) -> dict[int, str]:
    """A short name for each of several tables, by its identity: its own, or a number."""
    own = [shown(table.title.run, LINE) for table in tables]
    short = len(set(own)) == len(own) and max(map(len, own), default=0) <= SHORT
    named = own if short else [f"run {number}" for number in range(1, len(own) + 1)]
    return {id(t): name if len(own) > 1 else "" for t, name in zip(tables, named, strict=True)}


def _gathered(tables: Sequence[Table]) -> list[tuple[Table, Gathered]]:
    """The records of each table that has its own."""
    numbers: dict[str, int] = {}
    own = [table for table in tables if not table.part]
    made = []
    for table in own:
        cells = {row.cell.id: row.cell for row in table.rows}
        found = Gathered(cells.values(), numbers, TOKENS // len(own))
        for record in table.records():
            found.add(record)
        made.append((table, found))
    return made


def _indexed(
    rows: Sequence[tuple[Table, Summary]], table: Table, of: str | None
) -> list[tuple[int, Summary]]:
    return [(i, row) for i, (own, row) in enumerate(rows) if own is table and row.group == of]


def _traces(
    gathered: Sequence[tuple[Table, Gathered]],
    index: dict[tuple[int, str, str | None], int],
    called: Mapping[int, str],
) -> tuple[list[Trace], str]:
    """The generations that can be read, and how they were chosen."""
    made: list[Trace] = []
    tokenizers: dict[str, Any] = {}
    for table, found in gathered:
        numbers: dict[str, int] = {}
        for record in found.kept:
            cell = found.cells[record.cell]
            target = cell.models.target
            if target.id not in tokenizers:
                tokenizers[target.id] = None if cell.models.random else tokenizer_of(target)
            number = numbers.setdefault(record.sample, len(numbers) + 1)
            work = str(cell.work.task or ""), setting(cell)
            parts = [called[id(table)], *work, f"prompt {number}"]
            made.append(
                trace(
                    record,
                    name=method(cell),
                    group=", ".join(part for part in parts if part),
                    row=index[id(table), record.cell, None],
                    tokenizer=tokenizers[target.id],
                )
            )
    texts = sum(found.texts for _, found in gathered)
    told = f"{len(made):,} of {texts:,} generations can be read here"
    if len(made) < texts:
        told += f": the first {PROMPTS} prompts of each task and setting, one text each"
    return made, f"{told}."


def _pairings(
    gathered: Sequence[tuple[Table, Gathered]], called: Mapping[int, str]
) -> list[dict[str, Any]]:
    if len(gathered) < 2:
        return []
    runs = [
        (called[id(table)], {c: (found.cells[c], tally) for c, tally in found.tallies.items()})
        for table, found in gathered
    ]
    return [
        {
            "name": shown(each.name, LINE),
            "run": each.run,
            "base": runs[0][0],
            "shared": each.shared,
            "faster": _estimate(each.faster),
            "tau": _estimate(each.tau),
        }
        for each in pairings(runs[0][1], runs[1:])
    ]


def _defined(drawn: Sequence[Exhibit]) -> dict[str, str]:
    return {term: define(term) for each in drawn for term in each.terms}


def _estimate(estimate: Estimate | None) -> list[float | None] | None:
    return None if estimate is None else list(estimate)


def _name(called: str, row: Summary) -> str:
    parts = [called, str(row.cell.work.task or ""), setting(row.cell)]
    parts += [] if row.group is None else [group(row)]
    return shown(", ".join(part for part in [*parts, method(row.cell)] if part), LINE)
