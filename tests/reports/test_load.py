"""A report of a run on a busy machine: everything is shown, and marked."""

import re
from dataclasses import replace

import pytest

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary, summaries
from spsbench.reports.columns import brief, chosen, full
from spsbench.reports.figure1 import figure1
from spsbench.reports.figures import Curve, Figure, Panel, Point
from spsbench.reports.html import html
from spsbench.reports.plots import draw
from spsbench.reports.remarks import ceilings
from spsbench.reports.reporter import Report, Title, table_of
from spsbench.reports.table import chart
from spsbench.reports.text import body, latex
from tests.simulation import cell, run

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
    with pytest.raises(UsageError, match="`columns` speed: expected some of speed-up, answer"):
        chosen(made.rows, ["speed"])


ROW = Summary(
    cell=cell(0), samples=9, n=9, failures=0, cut=0, timed=9, horizon=9,
    mean_token_time_ms=Estimate(10.0, 9.0, 11.0, 9),
)  # fmt: skip


def test_a_bound_of_memory_that_was_measured_under_load_is_left_out():
    memory = {"weights": {"large": 1e7}, "bandwidth": 1e10, "loaded": False}
    (line,) = ceilings([ROW], {"memory": memory})
    assert "10.0 GB/s, measured" in line
    drafting = replace(ROW, cell=cell(4), mean_token_time_ms=Estimate(0.8, 0.7, 0.9, 9))
    _, above = ceilings([ROW, drafting], {"memory": memory})
    assert above.endswith("limit of 1.00 ms/token, which no ArS exceeds: xsum, T 1, SpS K=4: 125%.")
    assert ceilings([ROW], {"memory": memory | {"loaded": True}}) == []
    slow = replace(
        ROW, mean_token_time_ms=None, with_load={"mean_token_time_ms": ROW.mean_token_time_ms}
    )
    assert ceilings([slow], {"memory": memory}) == []


BASE = replace(ALL, cell=cell(0), speedup=Estimate(1.0, 1.0, 1.0, 18), with_load={})
FEW = Estimate(0.7, None, None, 2)
OPEN = replace(ALL, speedup=FEW, with_load=ALL.with_load | {"speedup": FEW}, processor_gain=1.32)
BEHIND = Estimate(0.85, 0.8, 0.9, 18)
SLOWER = replace(
    MIXED, cell=cell(2), timed=18, loaded=0, speedup=BEHIND, with_load={}, processor_gain=0.9
)


def page_of(*rows):
    return html(Report("run", [table(*rows)]))


def test_a_speedup_of_a_few_pairs_under_load_is_not_decided():
    said = " ".join(table(BASE, OPEN).remarks)
    assert (
        "Speed-up not decided: measured under load. Processor time (not elapsed time) a token, "
        "ArS over the method: xsum, T 1, SpS K=4 1.32x."
    ) in said
    assert "stays valid" not in said
    assert cells(1, table(BASE, OPEN))["speed-up"] == "not decided*"
    assert "0.70" not in chart([BASE, OPEN, SLOWER], 100)
    card = page_of(BASE, OPEN).partition("The answer")[2].partition("</article>")[0]
    assert ">not decided</b>" in card
    assert "measured under load" in card
    assert "1.32 times as much with ArS as with SpS K=4" in card
    assert "0.70" not in card


def test_a_decided_method_is_announced_before_an_undecided_one():
    card = page_of(BASE, OPEN, SLOWER).partition("The answer")[2].partition("</article>")[0]
    assert ">0.85x</b>" in card
    assert "SpS K=2 over ArS" in card


@pytest.mark.parametrize("interval", [(0.8, 0.9), (0.8, 1.1), (None, None)])
def test_what_is_slower_is_called_slower(interval):
    row = replace(SLOWER, speedup=Estimate(0.85, *interval, 18))
    card = page_of(BASE, row).partition("The answer")[2].partition("</article>")[0]
    assert '<b class="slower">0.85x</b> <span><strong>slower</strong>' in card
    assert "slower than ArS, 0.85 times as fast" in card.replace(" over 18 shared generations", "")
    remarks = table(BASE, row).remarks
    begin = "Slower than ArS per token: xsum, T 1, SpS K=2 0.85x"
    assert any(line.startswith(begin) for line in remarks)
    bars = chart([BASE, row], 100).splitlines()
    assert [line.endswith("slower") for line in bars if "SpS" in line] == [True]


def test_a_gain_by_token_that_the_prefill_eats_is_told_per_answer():
    gained, lost = Estimate(1.2, 1.1, 1.3, 18), Estimate(0.97, 0.95, 0.99, 18)
    row = replace(
        SLOWER,
        speedup=gained,
        answer_speedup=lost,
        ttft_ms=SLOW,
        answer_ms=SLOW._replace(mean=912.0),
    )
    remarks = table(BASE, row).remarks
    begin = "Slower than ArS per answer: xsum, T 1, SpS K=2 0.97x"
    assert [line.startswith(begin) for line in remarks if line.startswith("Slower")] == [True]
    assert cells(1, table(BASE, row))["answer speed-up"].startswith("0.97x")
    page = page_of(BASE, row)
    said = page.partition("The answer")[2].partition("</article>")[0]
    assert "its last after 912 ms" in said
    assert "the whole answer, prefill included, is slower than ArS, 0.97 times as fast" in said
    assert "Time to the last token, ms" in page


def test_a_speedup_over_other_generations_than_the_times_beside_it_says_so():
    said = table(BASE, replace(MIXED, speedup=FEW._replace(mean=1.2))).remarks
    (line,) = [line for line in said if line.startswith("A speed-up is over")]
    assert line.endswith("xsum, T 1, SpS K=4 2 pairs.")
    alike = replace(SLOWER, mean_token_time_ms=SLOW)
    base = replace(BASE, mean_token_time_ms=SLOW, timed=18, loaded=0)
    assert not any(line.startswith("A speed-up is over") for line in table(base, alike).remarks)


def test_processor_time_is_compared_over_the_pairs_alone():
    def run_of(k, samples, processor):
        for made in run(cell(k), 0.7, samples):
            spent = [r._replace(processor_seconds=processor * r.emitted) for r in made.rounds]
            yield replace(made, rounds=spent, flags=("loaded",))

    records = [*run_of(0, 3, 0.3), *run_of(4, 2, 0.2)]
    last = replace(
        records[2], rounds=[r._replace(processor_seconds=9.0) for r in records[2].rounds]
    )
    rows = summaries([cell(0), cell(4)], [*records[:2], last, *records[3:]])
    assert rows[1].undecided
    assert rows[1].processor_gain == pytest.approx(1.5)
    assert rows[0].processor_gain is None
    unmeasured = [*run(cell(0), 0.7, 2), *run(cell(4), 0.7, 2)]
    assert summaries([cell(0), cell(4)], unmeasured)[1].processor_gain is None
