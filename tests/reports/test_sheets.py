"""Findings on a page: audits and plans, from values alone."""

from dataclasses import replace

import pytest

from spsbench.errors import DataError
from spsbench.reports.audits import audit_sheet
from spsbench.reports.html import html
from spsbench.reports.page.paired import drawn
from spsbench.reports.reporter import Report, known_categories
from spsbench.store.folder import AUDITS, read_audits, write_audits
from tests.reports.pages import AUDIT, GREEDY, HOSTILE, cells, report_of, simulated
from tests.reports.test_page import Reader, data_of


def test_an_audit_is_drawn_with_its_numbers():
    sheet = audit_sheet(AUDIT)
    assert sheet.mood == "good"
    page = html(Report("audit", [], sheets=[sheet]))
    (exhibit,) = data_of(page)["exhibits"]
    series = {each["name"]: each for each in exhibit["axes"][0]["series"]}
    assert [mark[1:3] for mark in series["SpS"]["marks"]] == [[0, 0.0], [40, -0.5], [90, 0.25]]
    assert series["alarm"]["level"]
    assert series["alarm"]["marks"][0][2] == 3.0
    for told in ("draft", "+0.0100", "caught in 20 of 20", "10^0.25", "found none"):
        assert told in page


def test_a_bias_is_bad_and_its_tokens_are_listed():
    arm = AUDIT["sps"]
    impossible = [{"text": HOSTILE[0], "position": 3, "token": 7, "reason": "q is 0"}] * 30
    biased = {
        **AUDIT,
        "verdict": "bias found",
        "sps": {**arm, "impossible": impossible, "impossible_count": 99},
    }
    sheet = audit_sheet(biased)
    assert sheet.mood == "bad"
    assert sheet.grids[1].caption == "Impossible tokens of SpS: 99, the first 20"
    assert len(Reader(html(Report("audit", [], sheets=[sheet]))).scripts) == 2


def test_greedy_texts_that_part_are_listed():
    sheet = audit_sheet(GREEDY)
    assert sheet.grids[0].rows == (("p1", "tie", "5", "3 / 9", "1.5000 / 1.5000", "0", "1e-06"),)
    assert not sheet.figures
    assert "p1" in html(Report("audit", [], sheets=[sheet]))


def test_an_audit_kept_with_a_run_is_in_its_answer(tmp_path):
    report = report_of(simulated(), cells())
    table = report.tables[0]
    cell = table.rows[-1].cell
    audit = {**AUDIT, "settings": {"id": cell.id, "records": 10}}
    write_audits(tmp_path, [audit])
    assert read_audits(tmp_path) == [audit]
    sheet = audit_sheet(read_audits(tmp_path)[0], table.title.run, 12)
    assert "Made when there were 10 records; now there are 12." in sheet.notes
    page = html(replace(report, sheets=[sheet]))
    assert f"Audit of these records: {AUDIT['line']}." in page
    assert "bets against this run" not in page
    other = html(replace(report, sheets=[replace(sheet, mood="bad")]))
    assert other.count('<li class="bad">') == page.count('<li class="bad">') + 2


def test_a_damaged_audit_is_refused(tmp_path):
    assert read_audits(tmp_path) == []
    for text in ("{}", "nonsense", '{"schema": 99, "audits": []}', '{"schema": 1, "audits": [{}]}'):
        (tmp_path / AUDITS).write_text(text)
        with pytest.raises(DataError, match="audit again"):
            read_audits(tmp_path)


def test_a_figure_of_anything_is_drawn():
    report = report_of(simulated(), cells())
    found = drawn(report.tables[0].figure, id="x", title="t", says="s")
    assert [axes.title for axes in found[0].axes][1:] == [
        "Efficiency tau / (K + 1)",
        "Loop time (ms)",
    ]
    assert all(mark.row == -1 for axes in found[0].axes for s in axes.series for mark in s.marks)


def test_categories_are_there_only_where_prompts_have_some():
    records = simulated()
    none = known_categories(report_of(records, cells(), by_group=True))
    assert [row.group for row in none.tables[0].rows] == [None] * 3
    assert len(none.tables[0].paper) == 3
    some = [replace(each, group="a") for each in records]
    assert len(known_categories(report_of(some, cells(), by_group=True)).tables[0].rows) == 6
