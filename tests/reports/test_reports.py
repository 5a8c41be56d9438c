"""Each format: what it says of two known rows, and what hostile names do in it."""

import csv as reader
import io
import json as decoder
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet
import pytest

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import summaries
from spsbench.reports.columns import brief, paper_row
from spsbench.reports.figure1 import figure1, horizon_times, lines
from spsbench.reports.parquet import parquet
from spsbench.reports.plots import draw, svg
from spsbench.reports.reporter import Curve, Figure, Panel, Point, Report, Title
from spsbench.reports.run_tables import report_on, table_of
from spsbench.reports.table import table, without_shared
from spsbench.reports.text import (
    body,
    csv,
    csv_text,
    json,
    latex,
    latex_text,
    markdown,
    markdown_text,
    visible,
)
from spsbench.settings.models import ModelSpec
from spsbench.store.manifest import RUN_SCHEMA
from tests.golden.make import GOLDEN
from tests.reports import pages
from tests.reports.rows import ARS, SPS, TITLE
from tests.simulation import cell, failure, run

REPORTERS = {
    "table": table,
    "markdown": markdown,
    "csv": csv,
    "json": json,
    "latex": latex,
    "svg": lambda report: svg(report.tables[0].figure),
}
TIME = Estimate(900.0, None, None, 10)
HOSTILE = '=cmd|"/c calc"!A1\x1b[31m\u202e<b>[red]$\\end{tabular}_^%#&~`*|\n\u4e2d\U0001f600'


def report(rows, title=TITLE, **medium):
    return Report(title.run, [table_of(rows, title, paper=True)], **medium)


def text_of(made):
    return made if isinstance(made, str) else made.decode()


def test_what_matters_most_stands_first():
    scores = {"rouge2": SPS.alpha, "rouge2_stemmed": SPS.alpha, "empty": SPS.alpha}
    headings = body(table_of([ARS, replace(SPS, quality=scores)], TITLE)).headings
    assert headings[:4] == ["method", "setting", "n", "rouge2"]
    assert headings[-2:] == ["rouge2_stemmed", "empty"]
    other = replace(SPS, cell=cell(4, draft=ModelSpec("other")))
    assert body(table_of([ARS, SPS, other], TITLE)).headings[0] == "draft"


@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_table_of_any_width(width):
    text = table(report([ARS, SPS], width=width))
    assert max(map(len, text.splitlines())) <= width
    assert "ArS" in text
    shown, _, left_out = text.partition("Columns left out:")
    assert bool(left_out) == ("TTFT" not in shown)
    if width >= 80:
        full = without_shared(body(table_of([ARS, SPS], TITLE), brief, terse=True))
        gone = left_out.partition(". ")[0].replace("\n", " ").strip().split(", ")
        kept = [at for at, heading in enumerate(full.headings) if heading not in gone]
        cells = [row[at] for row in [full.headings, *full.rows] for at in kept]
        assert not [word for cell in cells for word in cell.split() if word not in shown]
        assert {"speed-up", "tau", "ms/token"} <= {full.headings[at] for at in kept}


def test_json_refuses_what_is_no_number():
    bad = replace(ARS, ttft_ms=Estimate(float("nan"), None, None, 1))
    with pytest.raises(ValueError, match=r"[Nn]a[Nn]|JSON"):
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


def test_quoting():
    assert visible("a\x1b\n\u202e\u200bb") == r"a\x1b\n\u202e\u200bb"
    assert [csv_text(t) for t in ("=1", " +1", "-x", "@a", "a=1")] == [
        "'=1",
        "' +1",
        "'-x",
        "'@a",
        "a=1",
    ]
    assert [csv_text(t) for t in ("\uff1d1", " \uff0b1", "\uff0d1", "\uff201")] == [
        "'\uff1d1",  # spreadsheets read full-width signs as the others
        "' \uff0b1",
        "'\uff0d1",
        "'\uff201",
    ]
    assert markdown_text("a|b_<i>") == r"a\|b\_\<i\>"
    assert latex_text("50% & {x}_1 \\") == r"50\% \& \{x\}\_1 \textbackslash{}"


def test_lines_of_the_figure():
    greedy = [replace(SPS, cell=cell(k, temperature=0.0)) for k in (0, 2, 1)]
    found = lines([ARS, SPS, *greedy])
    assert {label: [s.cell.k for s in rows] for label, rows in found.items()} == {
        "xsum, T 1": [0, 4],
        "xsum, greedy": [0, 1, 2],
    }
    adaptive = replace(SPS, cell=cell(4).but(draft=ModelSpec("other")))
    assert set(lines([SPS, adaptive])) == {"xsum, T 1, small", "xsum, T 1, other"}


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
        labels = draw(figure1(rows, str(TITLE))).axes[0].get_legend_handles_labels()[1]
        assert {"(mean token time x 128)" in label for label in labels} == {marked}


def test_a_long_title_wraps():
    figure = draw(figure1([ARS, SPS], "run " * 40 + "task " * 40))
    figure.draw_without_rendering()
    assert figure.get_suptitle().count("\n") >= 2
    assert figure._suptitle.get_window_extent().width < figure.bbox.width


def test_the_papers_figures_stand_beside_measured_ones_by_name():
    nucleus = replace(SPS, cell=cell(4, top_p=0.8))
    found = paper_row(nucleus)
    assert (found.result, found.mean_token_time_ms, found.speedup) == (0.114, 7.52, 1.92)
    assert paper_row(SPS) is None
    assert paper_row(replace(nucleus, cell=cell(3, top_p=0.8))) is None
    assert paper_row(replace(nucleus, group="writing")) is None


def test_a_run_with_the_papers_settings_has_its_rows_without_a_flag(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / str(RUN_SCHEMA), tmp_path / "run"))
    asked, unasked = (report_on([folder], paper=paper).tables[0].paper for paper in (True, False))
    assert [row is not None for row in asked] == [True, True]
    assert unasked == [None, None]
    manifest = decoder.loads((folder / "manifest.json").read_text())
    manifest["experiment"]["paper"] = True
    (folder / "manifest.json").write_text(decoder.dumps(manifest))
    assert report_on([folder]).tables[0].paper == asked


def test_a_figure_is_numbers_before_it_is_a_picture():
    reached = replace(SPS, horizon_time_ms=TIME, loop_time_ms=Estimate(9.0, 8.0, 11.0, 49))
    figure = figure1([replace(ARS, horizon_time_ms=TIME), reached], "run", ceiling_ms=5.0)
    times, efficiency, loop = figure.panels
    curve, baseline, bound = times.items
    assert (curve.points, curve.best) == ((Point(4, 0.9),), Point(4, 0.9))
    assert (baseline.y, baseline.line, bound.y, bound.line) == (0.9, curve.line, 0.64, None)
    assert efficiency.items == ()
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
    canvas = draw(Figure(title="", panels=(Panel(x="x", y="y", items=curves),)))
    canvas.savefig(io.BytesIO())
    assert canvas.axes[0].get_position().width > 0.5
