"""Bars of text: as long as the speed-up, with the interval in lighter shades."""

from pathlib import Path

import pytest

from spsbench.metrics.intervals import Estimate
from spsbench.reports.chart import bar, chart
from spsbench.reports.run_tables import report_on

ROOT = Path(__file__).parents[2]


def estimate(low, mean, high):
    return Estimate(mean=mean, low=low, high=high, n=9)


@pytest.mark.parametrize(
    ("gain", "drawn"),
    [
        ((1.0, 1.5, 2.0), "██████████▓▓▓▓▓░░░░░          "),
        ((None, 2.0, None), "████████████████████          "),
        ((0.3, 0.5, 0.7), "███▓▓░░  │                    "),
    ],
)
def test_a_bar_shows_estimate_interval_and_where_1_is(gain, drawn):
    assert bar(estimate(*gain), 0.1, 30, "█▓░│") == drawn


def test_a_chart_names_each_task_once_and_has_a_bar_for_each_method():
    report = report_on([ROOT / "results" / "table1-nano"])
    lines = chart(report.tables[0].rows, 120).splitlines()
    headings = [line for line in lines if line.startswith("speed-up")]
    assert len(headings) == len(set(headings)) == 3
    assert sum("SpS K=4" in line and "x [" in line for line in lines) == 3


def test_one_method_alone_has_no_chart():
    rows = report_on([ROOT / "results" / "table1-nano"]).tables[0].rows
    assert not chart([row for row in rows if row.cell.k == 0], 120)


def test_a_terminal_without_unicode_gets_ascii():
    rows = report_on([ROOT / "results" / "table1-nano"]).tables[0].rows
    assert chart(rows, 80, plain=True).isascii()
