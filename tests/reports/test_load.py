"""A report of a run on a busy machine: everything is shown, and marked."""

from dataclasses import replace

import pytest

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.columns import chosen
from spsbench.reports.figure1 import figure1
from spsbench.reports.plots import draw
from spsbench.reports.remarks import ceilings
from spsbench.reports.reporter import Curve, Figure, Panel, Point, Title
from spsbench.reports.run_tables import table_of
from spsbench.store.starts import Memory
from tests.reports.rows import BASE, BUSY, FEW, LOADED, MIXED, SLOWER
from tests.simulation import cell


def table(*rows):
    return table_of(rows, Title("run"), paper=True)


def test_points_under_load_are_open_and_the_legend_says_so():
    panels = figure1([LOADED], "run").panels
    loop = next(item for item in panels[2].items if isinstance(item, Curve))
    assert [point.loaded for point in loop.points] == [True]
    canvas = draw(figure1([LOADED], "run"))
    marks = [line for line in canvas.axes[2].lines if line.get_markerfacecolor() == "#ffffff"]
    assert len(marks) == 1
    labels = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert any("open marks: under load" in label for label in labels)


def test_panels_of_one_title_share_an_axis_that_shows_every_point():
    panels = [
        Panel(
            title=title,
            x="x",
            items=(Curve(name="c", points=(Point(1, y),), line=0),),
            from_zero=title == "a",
        )
        for title, y in (("a", 0.3), ("a", 0.9), ("b", 5.0))
    ]
    low, high, other = (
        axes.get_ylim() for axes in draw(Figure(title="", panels=tuple(panels))).axes
    )
    assert low == high
    assert low[0] == 0 < 0.9 < low[1] < 5.0 < other[1]


def test_a_panel_without_data_says_why_and_the_others_keep_their_legend():
    untimed = replace(LOADED, loaded=0, speedup=None, loop_time_ms=None, mean_token_time_ms=None)
    canvas = draw(figure1([untimed], "run"))
    texts = [" ".join(text.get_text() for text in axes.texts) for axes in canvas.axes]
    assert "first calls" in texts[0]
    assert "first calls" in texts[2]
    assert texts[1] == ""
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["xsum, T 1"]
    failed = draw(figure1([replace(untimed, n=0, failures=3, efficiency=None)], "run"))
    assert "all 3 generations failed" in failed.axes[1].texts[0].get_text()


def test_columns_are_chosen_by_heading_or_by_field():
    assert len(chosen([LOADED], ["speed-up", "alpha", "prefill_ms"])) == 3
    with pytest.raises(UsageError):
        chosen([LOADED], ["speed"])


ROW = Summary(
    cell=cell(0), samples=9, n=9, failures=0, cut=0, timed=9, horizon=9,
    mean_token_time_ms=Estimate(10.0, 9.0, 11.0, 9),
)  # fmt: skip


def test_a_bound_of_memory_that_was_measured_under_load_is_left_out():
    memory = Memory(1e10, weights={"large": 10**7})
    (line,) = ceilings([ROW], memory)
    assert "10.0 GB/s, measured" in line
    drafting = replace(ROW, cell=cell(4), mean_token_time_ms=Estimate(0.8, 0.7, 0.9, 9))
    _, above = ceilings([ROW, drafting], memory)
    assert above.endswith("limit of 1.00 ms/token, which no ArS exceeds: xsum, T 1, SpS K=4: 125%.")
    assert ceilings([ROW], Memory(1e10, True, memory.weights)) == ceilings([ROW], None) == []
    slow = replace(ROW, mean_token_time_ms=ROW.mean_token_time_ms._replace(loaded=True))
    assert ceilings([slow], memory) == []


def test_a_speedup_over_other_generations_than_the_times_beside_it_says_so():
    said = table(BASE, replace(MIXED, speedup=FEW._replace(mean=1.2, loaded=False))).remarks
    (line,) = [line for line in said if line.startswith("A speed-up is over")]
    assert line.endswith("xsum, T 1, SpS K=4 2 pairs.")
    alike = replace(SLOWER, mean_token_time_ms=BUSY)
    base = replace(BASE, mean_token_time_ms=BUSY, timed=18, loaded=0)
    assert not any(line.startswith("A speed-up is over") for line in table(base, alike).remarks)
