"""A report of a run on a busy machine: everything is shown, and marked."""

import re
from dataclasses import replace

import pytest

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import brief, chosen, full
from spsbench.reports.figure1 import figure1
from spsbench.reports.figures import Curve
from spsbench.reports.html import html
from spsbench.reports.plots import draw
from spsbench.reports.remarks import ceilings
from spsbench.reports.reporter import Report, Title, table_of
from spsbench.reports.text import body, latex
from tests.simulation import cell

FAST, SLOW = Estimate(7.0, 6.9, 7.1, 6), Estimate(21.0, 18.0, 26.0, 18)
GAINED = Estimate(1.8, 1.2, 2.7, 18)
MIXED = Summary(
    cell=cell(4),
    samples=18,
    n=18,
    failures=0,
    cut=0,
    timed=6,
    loaded=12,
    horizon=128,
    efficiency=Estimate(0.5, 0.4, 0.6, 18),
    mean_token_time_ms=FAST,
    loop_time_ms=FAST,
    speedup=GAINED,
    with_load={"mean_token_time_ms": SLOW, "loop_time_ms": SLOW, "speedup": GAINED},
)
ALL = replace(MIXED, timed=0, loaded=18, mean_token_time_ms=None, loop_time_ms=None)


def table(*rows):
    return table_of(rows, Title("run"), paper=True)


def cells(line, of):
    text = body(of, full)
    return dict(zip(text.headings, text.rows[line], strict=True))


def test_quiet_figures_and_all_of_them_stand_below_each_other():
    quiet, every = (cells(line, table(MIXED)) for line in (0, 1))
    assert quiet["n"] == "18 (12 of 18 under load)"
    assert quiet["ms/token"] == "7.00 [6.90, 7.10]"
    assert every["method"].strip() == "including those under load"
    assert (every["n"], every["ms/token"]) == ("18", "21.00 [18.00, 26.00]*")
    assert every["alpha"] == ""  # load has no part in it


def test_every_line_of_the_page_knows_its_row():
    paper = replace(MIXED, cell=cell(4, top_p=0.8))  # a row, all of its timings, and the paper's
    page = html(Report("run", [table(replace(ALL, cell=cell(0)), paper, MIXED)]))
    found = re.findall(r'<tr (class=paper )?data-row="(\d+)">', page)
    assert [int(row) for _, row in found] == [0, 1, 1, 1, 2, 2]
    assert [bool(theirs) for theirs, _ in found] == [False, False, False, True, False, False]


def test_with_nothing_quiet_the_figures_of_all_are_marked():
    assert len(body(table(ALL)).rows) == 1
    row = cells(0, table(ALL))
    assert row["n"] == "18 (18 of 18 under load)"
    assert row["ms/token"] == "21.00 [18.00, 26.00]*"
    assert row["speed-up"] == "1.80x [1.20, 2.70]*"


def test_the_report_says_what_load_means_and_what_to_do():
    said = " ".join(table(MIXED).remarks)
    assert "12 of 18 timings were taken under load" in said
    assert "stop the other programs" in said
    assert "under load" not in " ".join(table(replace(MIXED, timed=18, loaded=0)).remarks)


def test_points_under_load_are_open_and_the_legend_says_so():
    panels = figure1([ALL], "run").panels
    loop = next(item for item in panels[2].items if isinstance(item, Curve))
    assert [point.loaded for point in loop.points] == [True]
    canvas = draw(figure1([ALL], "run"))
    marks = [line for line in canvas.axes[2].lines if line.get_markerfacecolor() == "white"]
    assert len(marks) == 1
    labels = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert any("open marks: under load" in label for label in labels)


def test_a_panel_without_data_says_why_and_the_others_keep_their_legend():
    untimed = replace(ALL, loaded=0, with_load={}, speedup=None)
    canvas = draw(figure1([untimed], "run"))
    texts = [" ".join(text.get_text() for text in axes.texts) for axes in canvas.axes]
    assert "first calls" in texts[0]
    assert "first calls" in texts[2]
    assert texts[1] == ""
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["xsum, T 1"]
    failed = draw(figure1([replace(untimed, n=0, failures=3, efficiency=None)], "run"))
    assert "all 3 generations failed" in failed.axes[1].texts[0].get_text()


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (Estimate(2.0, 1.9, 2.1, 9), "2.00 ±0.10"),
        (Estimate(2.0, 1.898, 2.104, 9), "2.00 ±0.10"),  # alike to the digits shown
        (Estimate(2.0, 1.9, 2.3, 9), "2.00 [1.90, 2.30]"),
        (Estimate(0.0, 0.0, 0.3, 9), "0.00 [0.00, 0.30]"),
        (Estimate(2.0, None, None, 1), "2.00"),
    ],
)
def test_no_plus_minus_where_the_sides_differ(estimate, shown):
    assert brief(estimate, 2) == shown


def test_latex_has_symbols_a_short_caption_and_chosen_columns():
    made = table(ALL)
    shown = replace(made, columns=chosen(made.rows, ["speed-up", "alpha", "prefill_ms"]))
    text = latex(Report("run", [shown]))
    assert r"{}method & setting & n & speed-up & $\alpha$ & prefill\_ms \\" in text
    assert r"1.80$\times$ [1.20, 2.70]$^{*}$ & n/a & n/a" in text
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption"))
    assert caption == r"\caption[{run}]{run.}"
    assert "under load: other programs used more than" in text.split(r"\end{tabular}")[1]
    with pytest.raises(UsageError, match="--columns speed: expected some of speed-up, ms/token"):
        chosen(made.rows, ["speed"])


ROW = Summary(
    cell=cell(0), samples=9, n=9, failures=0, cut=0, timed=9, horizon=9,
    mean_token_time_ms=Estimate(10.0, 9.0, 11.0, 9),
)  # fmt: skip


def test_the_bound_of_memory_says_that_it_was_disturbed():
    memory = {"weights": {"large": 1e7}, "bandwidth": 1e10, "loaded": True}
    (line,) = ceilings([ROW], {"memory": memory})
    assert "10.0 GB/s, measured under load, so it may be higher" in line
    (line,) = ceilings([ROW], {"memory": memory | {"loaded": False}})
    assert "under load" not in line
    slow = replace(ROW, mean_token_time_ms=None, with_load={"mean_token_time_ms": ROW.speedup})
    assert ceilings([slow], {"memory": memory}) == []
