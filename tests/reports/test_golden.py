"""What reports of known rows say in each format; `pytest tests/reports --approve` rewrites it.

A change of wording is a difference of the files in `golden/`, which is reviewed as such.
"""

import re
from pathlib import Path

import pytest

from spsbench.reports.audits import audit_section
from spsbench.reports.html import html
from spsbench.reports.other_benchmarks import figure_tables, read_results
from spsbench.reports.reporter import Report
from spsbench.reports.table import chart, report_text
from spsbench.reports.text import csv, json, latex, report_markdown
from tests.reports.pages import AUDIT, GREEDY, HOSTILE
from tests.reports.rows import REPORTS

HERE = Path(__file__).parent
FORMS = {"md": report_markdown, "txt": report_text}
ALL_FORMS = FORMS | {"csv": csv, "json": json, "tex": latex}
IMPOSSIBLE = [{"text": HOSTILE[0], "position": 3, "token": 7, "reason": "q is 0"}] * 30
BIASED = AUDIT | {
    "verdict": "bias found",
    "sps": AUDIT["sps"] | {"impossible": IMPOSSIBLE, "impossible_count": 99},
}


AUDITS = {"audit.greedy": GREEDY, "audit.biased": BIASED}
OTHERS = {f"others-{file.stem}": file for file in (HERE / "results_of_others").iterdir()}


def parted(page: str, begin: str, end: str) -> str:
    """Return a part of a page, a line an element, but for the cells of a row."""
    part = page.partition(begin)[2].partition(end)[0]
    return re.sub(r"><(?!/?t[dh]\b|/tr)", ">\n<", part) + "\n"


def rendered(name: str) -> dict[str, str]:
    """Return the content of each file of a case."""
    if name in AUDITS:
        page = html(Report("audit", [], sections=[audit_section(AUDITS[name])]))
        return {f"{name}.html": parted(page, "<main", "</main>")}
    if name in OTHERS:
        tables = figure_tables(read_results(OTHERS[name]))
        lines = ["\n".join([t.title, *map(" | ".join, t.rows), *t.remarks]) for t in tables]
        return {f"{name}.txt": "\n\n".join(lines) + "\n"}
    report = REPORTS[name]
    forms = ALL_FORMS if name in ("run", "load") else FORMS
    texts = {f"{name}.{form}": write(report) for form, write in forms.items()}
    texts[f"{name}.answer.html"] = parted(html(report), "The answer", "</article>")
    rows = [row for each in report.tables for row in each.rows]
    return texts | {f"{name}.chart.txt": chart(rows, 100) + "\n"}


CASES = [*REPORTS, *AUDITS, *sorted(OTHERS)]


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_its_golden_files_say(
    name: str, undrawn: None, request: pytest.FixtureRequest
) -> None:
    for file, content in rendered(name).items():
        path = HERE / "golden" / file
        if request.config.getoption("approve"):
            path.write_bytes(content.encode())
        assert content.encode() == path.read_bytes()
