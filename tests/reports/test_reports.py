"""Each format: what it says of two known rows, and what hostile names do in it."""

import csv as reader
import io
import json as decoder
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from spsbench.errors import UsageError
from spsbench.methods.verifiers.chain_rules import Synthetic
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import summaries, time_quantiles
from spsbench.reports.audits import audit_section
from spsbench.reports.columns import choose_columns, full, paper_row, table_columns
from spsbench.reports.figure1 import figure1, horizon_times
from spsbench.reports.parquet import parquet
from spsbench.reports.plots import draw_figure, svg
from spsbench.reports.remarks import ceilings
from spsbench.reports.reporter import Curve, Figure, Panel, Point, Report, Title
from spsbench.reports.run_tables import make_table, report_on
from spsbench.reports.table import report_text
from spsbench.reports.text import body, csv, csv_text, golden, json, latex, report_markdown
from spsbench.settings.models import ModelSpec
from spsbench.store.manifest import RUN_SCHEMA
from spsbench.store.run_folder import write_audits
from spsbench.store.starts import Memory
from tests.golden.make import GOLDEN
from tests.reports import pages
from tests.reports.rows import ARS, LOADED, SPS, TITLE, summary
from tests.simulation import cell, failure, record, run

REPORTERS = {
    "table": report_text,
    "markdown": report_markdown,
    "csv": csv,
    "json": json,
    "latex": latex,
    "svg": lambda report: svg(report.tables[0].figure),
}
TIME = Estimate(900.0, None, None, 10)
HOSTILE = '=cmd|"/c calc"!A1\x1b[31m\u202e<b>[red]$\\end{tabular}_^%#&~`*|\n\u4e2d\U0001f600'


def report(rows, title=TITLE, **medium):
    return Report(title.run, [make_table(rows, title, paper=True)], **medium)


def text_of(made):
    return made if isinstance(made, str) else made.decode()


def test_golden_lengths_of_unlike_rows_have_unlike_names(tmp_path):
    drafted = replace(SPS, accepted_length=Estimate(1.234, None, None, 1))
    cold = replace(drafted, cell=cell(4, temperature=0.0))
    thoughts = [record(cold.cell, "0", 0, [], text="because</think>so")]
    table = replace(make_table([ARS, drafted, cold], TITLE), records=lambda: iter(thoughts))
    curves = yaml.safe_load(golden(Report("", [table])))
    modes = [{"thinking_off": {4: 2.23}}, {"thinking_on": {4: 2.23}}]
    assert list(curves.values()) == modes
    assert all(name.startswith("large, ") for name in curves)
    (tmp_path / "one.yaml").write_text(golden(report([drafted])))
    Synthetic(length=str(tmp_path / "one.yaml"))  # is read as it was written
    with pytest.raises(UsageError):
        golden(report([ARS]))


def test_what_matters_most_stands_first():
    scores = {"rouge2": SPS.alpha, "rouge2_stemmed": SPS.alpha, "empty": SPS.alpha}
    headings = body(make_table([ARS, replace(SPS, quality=scores)], TITLE)).headings
    assert headings[:4] == ["method", "setting", "n", "rouge2"]
    assert headings[-2:] == ["rouge2_stemmed", "empty"]
    other = replace(SPS, cell=cell(4, draft=ModelSpec("other")))
    assert body(make_table([ARS, SPS, other], TITLE)).headings[0] == "draft"


def test_json_refuses_what_is_no_number():
    bad = replace(ARS, ttft_ms=Estimate(float("nan"), None, None, 1))
    with pytest.raises(ValueError):
        json(report([bad]))


@pytest.mark.parametrize("name", REPORTERS)
def test_empty_failed_and_single_rows(name):
    one = next(run(cell(4), 0.7, 1))
    for records in ([], [failure(cell(4), "a")], [one]):
        rows = summaries([cell(0), cell(4)], records)
        assert REPORTERS[name](report(rows))
    assert REPORTERS[name](report([], Title("empty")))


@pytest.mark.parametrize("name", REPORTERS)
def test_hostile_names_stay_text(name):
    made = replace(SPS, cell=cell(4, draft=ModelSpec(HOSTILE)), quality={HOSTILE: SPS.alpha})
    made = replace(made, loop_time_ms=SPS.mean_token_time_ms, efficiency=SPS.alpha)
    out = REPORTERS[name](report([ARS, made], Title(HOSTILE, HOSTILE, (HOSTILE,))))
    text = text_of(out)
    assert "\x1b" not in text
    assert "\u202e" not in text
    if name == "csv":
        header, *rows = reader.reader(io.StringIO(text))
        assert {len(row) for row in rows} == {len(header)}
        assert not any(value.startswith(("=", "@")) for row in [header, *rows] for value in row)
    if name == "markdown":
        grid = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(grid) == 4
        assert len({line.replace("\\|", "").count("|") for line in grid}) == 1
        assert "<b>" not in text
    if name == "latex":
        assert text.count(r"\end{tabular}") == 1
    if name == "svg":
        ElementTree.fromstring(text)


@pytest.mark.parametrize("sign", [*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_leading_sign_is_no_formula_in_csv(sign):
    assert csv_text(f" {sign}1") == f"' {sign}1"  # full-width signs are read as the others
    assert csv_text(f"a{sign}1") == f"a{sign}1"


def test_the_time_to_the_horizon_is_not_that_of_the_few_that_got_there():
    reached = replace(SPS, horizon_time_ms=TIME)
    times, measured = horizon_times([reached, reached])
    assert measured
    assert [time.mean for _, time in times] == [0.9, 0.9]
    one = replace(reached, horizon_time_ms=TIME._replace(n=1), timed=1)
    assert horizon_times([one])[1]
    for few in (SPS, replace(reached, horizon_time_ms=TIME._replace(n=9))):
        times, measured = horizon_times([reached, few])
        assert not measured
        assert [time.mean for _, time in times] == [pytest.approx(0.128 * 7.52)] * 2
    for rows, marked in (
        ([ARS, SPS], True),
        ([replace(ARS, horizon_time_ms=TIME), reached], False),
    ):
        labels = draw_figure(figure1(rows, str(TITLE))).axes[0].get_legend_handles_labels()[1]
        assert {"(mean token time x 128)" in label for label in labels} == {marked}


def test_a_run_with_the_papers_settings_has_its_rows_without_a_flag(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / str(RUN_SCHEMA), tmp_path / "run"))
    asked, unasked = (report_on([folder], paper=paper).tables[0] for paper in (True, False))
    papers = [table.paper_row(row) for table in (asked, unasked) for row in table.rows]
    assert [paper is not None for paper in papers] == [True, True, False, False]
    assert paper_row(replace(asked.rows[0], group="writing")) is None
    manifest = decoder.loads((folder / "manifest.json").read_text())
    manifest["experiment"]["paper"] = True
    (folder / "manifest.json").write_text(decoder.dumps(manifest))
    (table,) = report_on([folder]).tables
    assert [*map(table.paper_row, table.rows)] == [*map(asked.paper_row, asked.rows)]


def test_an_audit_counts_the_records_of_its_own_run(tmp_path):
    folders = [Path(shutil.copytree(GOLDEN / str(RUN_SCHEMA), tmp_path / n)) for n in ("a", "ab")]
    row = report_on(folders[:1]).tables[0].whole[0]
    audited = {"id": row.cell.id, "records": row.n + row.failures}
    write_audits(folders[0], [pages.AUDIT | {"settings": audited}])
    (section,) = report_on(folders).sections
    assert section.notes == audit_section(pages.AUDIT).notes  # nothing of a change


def test_a_figure_is_numbers_before_it_is_a_picture():
    reached = replace(SPS, horizon_time_ms=TIME, loop_time_ms=Estimate(9.0, 8.0, 11.0, 49))
    figure = figure1([replace(ARS, horizon_time_ms=TIME), reached], "run", ceiling_ms=5.0)
    times, efficiency, loop = figure.panels
    curve, baseline, bound = times.items
    assert (curve.points, curve.best) == ((Point(4, 0.9),), Point(4, 0.9))
    assert (baseline.y, baseline.line, bound.y, bound.line) == (0.9, curve.line, 0.64, None)
    assert not efficiency.items
    assert svg(replace(figure, panels=(times,))) == svg(replace(figure, panels=(times,)))
    assert loop.items[0].points == (Point(4, 9.0, 8.0, 11.0),)


def test_rows_are_the_records():
    records = pages.simulated(samples=3)
    records[0] = replace(records[0], text=pages.HOSTILE[6], flags=("first",), group="a")
    sums = [r._replace(passes=n) for n, r in enumerate(records[1].rounds)]
    records[1] = replace(records[1], rounds=sums)
    made = pyarrow.parquet.read_table(
        io.BytesIO(parquet(pages.report_of(records, pages.cells())))
    ).to_pylist()
    whole = [row for row in made if row["kind"] == "generation"]
    rounds = [row for row in made if row["kind"] == "round"]
    assert len(whole) == len(records)
    assert len(rounds) == sum(len(each.rounds) for each in records)
    first = whole[0]
    assert (first["flags"], first["group"], first["round"]) == (["first"], "a", None)
    assert first["text"] == "half \\ud800 a pair \\udfff"
    for row, one in zip(whole, records, strict=True):
        assert row["tokens"] == one.tokens
        assert row["rounds"] == sum(r.passes for r in one.rounds)
        assert row["seconds"] == sum(r.seconds for r in one.rounds)
        own = [r for r in rounds if (r["cell"], r["sample"]) == (one.cell, one.sample)]
        assert [r["overlap"] for r in own] == [r.overlap for r in one.rounds]
        assert [r["round"] for r in own] == list(range(len(one.rounds)))


def test_one_panel_has_room_for_its_plot_beside_long_names():
    names = [f"{number}{'a long name ' * 11}" for number in range(4)]
    points = (Point(1, 1), Point(2, 2))
    curves = tuple(Curve(name=name, points=points, line=i) for i, name in enumerate(names))
    canvas = draw_figure(Figure(title="", panels=(Panel(x="x", y="y", items=curves),)))
    canvas.savefig(io.BytesIO())
    assert canvas.axes[0].get_position().width > 0.5


# Timings under load: shown, and marked.


def test_points_under_load_are_open_and_the_legend_says_so():
    panels = figure1([LOADED], "run").panels
    loop = next(item for item in panels[2].items if isinstance(item, Curve))
    assert [point.loaded for point in loop.points] == [True]
    canvas = draw_figure(figure1([LOADED], "run"))
    marks = [line for line in canvas.axes[2].lines if line.get_markerfacecolor() == "#ffffff"]
    assert len(marks) == 1
    labels = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert any("open marks: busy machine" in label for label in labels)


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
        axes.get_ylim() for axes in draw_figure(Figure(title="", panels=tuple(panels))).axes
    )
    assert low == high
    assert low[0] == 0 < 0.9 < low[1] < 5.0 < other[1]


def test_a_panel_without_data_says_why_and_the_others_keep_their_legend():
    untimed = replace(LOADED, loaded=0, speedup=None, loop_time_ms=None, mean_token_time_ms=None)
    canvas = draw_figure(figure1([untimed], "run"))
    texts = [" ".join(text.get_text() for text in axes.texts) for axes in canvas.axes]
    assert "first calls" in texts[0]
    assert "first calls" in texts[2]
    assert texts[1] == ""
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["xsum, T 1"]
    failed = draw_figure(figure1([replace(untimed, n=0, failures=3, efficiency=None)], "run"))
    assert "all 3 generations failed" in failed.axes[1].texts[0].get_text()


def test_times_to_the_horizon_are_spread_in_columns_where_k_is_swept():
    rows = [
        summary(cell(k), n, spread=time_quantiles(np.arange(float(n))))
        for k, n in ((0, 100), (2, 100), (4, 99))
    ]
    columns = {c.heading: c for c in table_columns(rows)}
    shown = [[columns[name].text(row, full) for row in rows] for name in ("sd ms", "P99 ms")]
    assert shown == [["29.0", "29.0", "28.7"], ["98.0", "98.0", "n/a"]]
    assert not {"sd ms", "P99 ms"} & {c.heading for c in table_columns(rows[:2])}


def test_columns_are_chosen_by_heading_or_by_field():
    assert len(choose_columns([LOADED], ["speed-up", "alpha", "prefill_ms"])) == 3
    with pytest.raises(UsageError):
        choose_columns([LOADED], ["speed"])


def test_a_bound_of_memory_that_was_measured_under_load_is_left_out():
    row = summary(cell(0), 9, mean_token_time_ms=Estimate(10.0, 9.0, 11.0, 9))
    memory = Memory(1e10, weights={"large": 10**7})
    (line,) = ceilings([row], memory)
    assert "10.0 GB/s, measured" in line
    drafting = replace(row, cell=cell(4), mean_token_time_ms=Estimate(0.8, 0.7, 0.9, 9))
    _, above = ceilings([row, drafting], memory)
    assert above.endswith("limit of 1.00 ms/token, which no ArS exceeds: xsum, T 1, SpS K=4: 125%.")
    assert ceilings([row], Memory(1e10, True, memory.weights)) == ceilings([row], None) == []
    slow = replace(row, mean_token_time_ms=row.mean_token_time_ms._replace(loaded=True))
    assert ceilings([slow], memory) == []


def test_prefills_are_compared_with_the_limit_of_products():
    row = summary(cell(0), 9, prefill_ms=Estimate(10.0, 9.0, 11.0, 9))
    memory = Memory(1e10, weights={"large": 10**7}, prompt={"large": 1e-4})
    (line,) = ceilings([row], memory, {row.cell.id: 50.0})
    assert "to 0.100 ms/token" in line
    assert line.endswith("xsum, T 1, ArS: 50% of 50 tokens.")
    loaded = replace(row, prefill_ms=row.prefill_ms._replace(loaded=True))
    drafting = replace(row, cell=cell(4))
    for left_out in (loaded, drafting):
        assert ceilings([left_out], memory, {left_out.cell.id: 50.0}) == []
    assert ceilings([row], memory) == []
