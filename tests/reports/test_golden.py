"""What reports of known rows say in each format: `python -m tests.reports.test_golden` rewrites it.

A change of wording is a difference of the files in `golden/`, which is reviewed as such.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.metrics.summaries import Summary
from spsbench.reports.audits import audit_section
from spsbench.reports.batch_figures import with_batch_figures
from spsbench.reports.html import html
from spsbench.reports.other_benchmarks import read_results, tables
from spsbench.reports.reporter import Report, Table, Title
from spsbench.reports.run_tables import table_of
from spsbench.reports.table import chart, table
from spsbench.reports.text import csv, json, latex, markdown
from spsbench.spec import Spec
from tests.reports.pages import AUDIT, GREEDY, HOSTILE
from tests.reports.rows import ARS, BASE, EATEN, FEW, LOADED, MIXED, OPEN, PAPER, SLOWER, SPS, TITLE
from tests.reports.test_batches import ROWS, row
from tests.simulation import cell

HERE = Path(__file__).parent
FORMS = {"md": markdown, "txt": table}
IMPOSSIBLE = [{"text": HOSTILE[0], "position": 3, "token": 7, "reason": "q is 0"}] * 30
BIASED = AUDIT | {
    "verdict": "bias found",
    "sps": AUDIT["sps"] | {"impossible": IMPOSSIBLE, "impossible_count": 99},
}
ALL_FORMS = FORMS | {"csv": csv, "json": json, "tex": latex}


def in_batches() -> Table:
    """Rows of three K in batches of three sizes."""
    rows = [*ROWS, row(2, 8, tau=2.5, continuous=True), row(2, 16, tau=2.9, continuous=True)]
    return with_batch_figures(table_of(rows, Title("run")), rows)


def long_names() -> list[Summary]:
    """Rows that share their sampling, one with a name of many letters."""
    adaptive = {
        "drafter": Spec.parse("hybrid:first=suffix,then=eagle3"),
        "schedule": Spec.parse("goodput:draft=0.08,row=0.02,most=6"),
    }
    shared = {"chat": True, "top_p": 0.8}
    cells = cell(0, **shared), cell(4, **shared), cell(4, **shared, **adaptive)
    return [replace(row, cell=of) for row, of in zip((ARS, SPS, SPS), cells, strict=True)]


def reports() -> Iterator[tuple[str, Report]]:
    """Yield the name and the report of each case."""
    plain = table_of([ARS, SPS, PAPER], TITLE, paper=True)
    yield "run", Report("run-1", [plain])
    yield "narrow", Report("run-1", [plain], width=60, plain=True)
    notes = ("Quality, xsum: fine.", "Incomplete: 3 of 9 generations.")
    named = table_of(long_names(), Title("run-1", "", notes), paper=True)
    yield "names", Report("run-1", [named], width=100)
    loaded = table_of([BASE, OPEN, replace(MIXED, cell=cell(3)), SLOWER], Title("run"), paper=True)
    yield "load", Report("run", [loaded])
    others = {"eaten": [BASE, EATEN], "open": [BASE, OPEN], "loaded": [LOADED]}
    others["unpaired"] = [BASE, replace(MIXED, speedup=FEW._replace(mean=1.2, loaded=False))]
    runs = [table_of(rows, Title(name)) for name, rows in others.items()]
    yield "runs", Report(", ".join(others), runs)
    yield "batches", Report("run", [in_batches()])


def rendered() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each file."""
    for name, made in reports():
        for form, write in (ALL_FORMS if name in ("run", "load") else FORMS).items():
            text = write(made)
            yield f"{name}.{form}", text if isinstance(text, str) else text.decode()
        card = html(made).partition("The answer")[2].partition("</article>")[0]
        bars = chart([row for each in made.tables for row in each.rows], 100)
        yield f"{name}.answer.html", card.replace("><", ">\n<") + "\n"
        yield f"{name}.chart.txt", bars + "\n"
    for name, audit in {"bernoulli": AUDIT, "greedy": GREEDY, "biased": BIASED}.items():
        card = html(Report("audit", [], sections=[audit_section(audit)])).partition("<main")[2]
        yield f"audit.{name}.html", card.partition("</main>")[0].replace("><", ">\n<") + "\n"
    for file in sorted((HERE / "results_of_others").iterdir()):
        lines = [
            "\n".join([title, *map(" | ".join, rows), *notes])
            for title, _, rows, notes in tables(read_results(file))
        ]
        yield f"others-{file.stem}.txt", "\n\n".join(lines) + "\n"


FILES = dict(rendered())


@pytest.mark.parametrize("name", FILES)
def test_a_report_says_what_its_golden_file_says(name: str) -> None:
    assert FILES[name].encode() == (HERE / "golden" / name).read_bytes()


def test_every_golden_file_is_of_a_report() -> None:
    assert {path.name for path in (HERE / "golden").iterdir()} == set(FILES)


if __name__ == "__main__":
    for name, content in FILES.items():
        (HERE / "golden" / name).write_bytes(content.encode())
