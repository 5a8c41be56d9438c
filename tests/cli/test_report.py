"""`sps report`: tables of a run in every format, and against an earlier one."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from spsbench.errors import Exit
from spsbench.reports.run_tables import conclude_run
from spsbench.store.log import encode_record, iterate
from tests.variants import first

BY_GROUP = ("--by", "group")
RESULTS = Path(__file__).parents[1] / "reports" / "results_of_others"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the run lies that tests get copies of."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def run(kept, sps, pair, tmp_path):
    """A run over three K of two kinds of prompts."""
    if not (kept / "run" / "summary.json").exists():
        make_run(kept, sps, pair)
    return Path(shutil.copytree(kept / "run", tmp_path / "run"))


def make_run(folder, sps, pair):
    data = folder / "prompts.jsonl"
    rows = [{"id": f"p{i}", "prompt": f"the cat {i}", "reference": "the dog"} for i in range(8)]
    rows = [row | {"category": ("writing", "math")[i % 2]} for i, row in enumerate(rows)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = ("--target", pair.target, "--draft", pair.draft)
    lengths = ("-n", "6", "--k", "1..3", "--warmup", "0")
    out = ("--out", str(folder / "run"))
    ran = sps("bench", "jsonl", "--chat", "off", "--data", str(data), *models, *lengths, *out)
    assert ran.code == 0, ran.err


def slower(run, copy, factor):
    """A copy of a run in which all rounds took `factor` times as long, and nothing is flagged."""
    copy.mkdir()
    for path in run.iterdir():
        if path.name.startswith("records"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            with (copy / path.name).open("wb") as file:
                for number, row in enumerate(rows):
                    del row["crc"], row["n"]
                    if "rounds" in row:
                        row["flags"] = []
                        row["rounds"] = [
                            [*r[:5], *(factor * t for t in r[5:])] for r in row["rounds"]
                        ]
                    file.write(encode_record(number, row))
        elif path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_every_format(sps, run):
    shown = {f: sps("report", str(run), "--format", f) for f in ("table", "md", "csv", "latex")}
    assert {ran.code for ran in shown.values()} == {0}
    for form, ran in shown.items():
        assert "SpS K=2" in ran.out, form
    assert shown["csv"].out.startswith("run,cell,k")
    made = json.loads(sps("report", str(run), "--format", "json").out)
    assert made == json.loads((run / "summary.json").read_text())
    both = json.loads(sps("report", str(run), str(run), "--format", "json").out)
    assert both == [made, made]
    (modes,) = yaml.safe_load(sps("report", str(run), "--format", "golden").out).values()
    lengths = {row["k"]: row["metrics"]["accepted_length"] for row in made["rows"] if row["k"]}
    assert modes == {"thinking_off": {k: round(1 + x["mean"], 2) for k, x in lengths.items()}}


@pytest.mark.parametrize(
    ("task", "unit"),
    first(
        1,
        [
            ("xsum:data=mini,count=9", "18 answers to all 9 samples"),
            ("xsum:data=mini --limit 9", "9 samples"),
        ],
    ),
)
def test_quality_is_by_answer_where_all_samples_have_several(sps, tmp_path, task, unit):
    models = ("--target", "nano", "--k", "1", "-n", "4", "--out", str(tmp_path / "run"))
    sampled = ("--temperature", "1", "--samples", "2", "--warmup", "0", "--chat", "off")
    ran = sps("bench", *task.split(), *models, *sampled)
    assert ran.code == 0, ran.err
    remarks = json.loads((tmp_path / "run" / "summary.json").read_text())["remarks"]
    (line,) = [remark for remark in remarks if remark.startswith("Quality, ")]
    assert f" over {unit}, " in line


def test_by_category(sps, run, tmp_path):
    shown = sps("report", str(run), *BY_GROUP, "--format", "json")
    rows = json.loads(shown.out)["rows"]
    whole = json.loads((run / "summary.json").read_text())["rows"]
    assert [row["group"] for row in rows] == [*["writing"] * 4, *["math"] * 4, *[None] * 4]
    assert rows[8:] == whole
    assert {row["n"] for row in rows[:8]} == {4}
    drawn = sps("report", str(run), *BY_GROUP, "--plot", str(tmp_path / "figure.svg"))
    assert drawn.code == 0
    assert b"<svg" in (tmp_path / "figure.svg").read_bytes()


def test_against_an_earlier_run(sps, run, tmp_path):
    base, same = slower(run, tmp_path / "base", 1.0), slower(run, tmp_path / "same", 1.0)
    worse = slower(run, tmp_path / "worse", 30.0)
    ran = sps("report", str(same), "--against", str(base))
    assert ran.code == 0
    assert "0 regressions" in ran.err
    ran = sps("report", str(worse), "--against", str(base), "--margin", "0.5")
    assert ran.code == 1
    assert "mean_token_time_ms changed by 29.000" in ran.err
    assert "regression" in ran.err
    assert sps("report", str(run), "--margin", "0.1").code == Exit.USAGE
    assert sps("report", str(run), "--against", str(base), "--margin", "2").code == Exit.USAGE


def test_a_run_of_unlike_machines_has_counts_and_no_times(sps, run, tmp_path):
    moved = slower(run, tmp_path / "moved", 1.0)
    first, *lines = iterate(log := moved / "records-00-of-01.jsonl")
    other, idle = deepcopy(first), deepcopy(first)
    other["start"]["provenance"]["hardware"]["cpu"] = "another"
    idle["start"]["provenance"]["hardware"]["cpu"] = "of a start without records"
    lines = [first, *lines[:16], other, *lines[16:], idle]
    log.write_bytes(b"".join(map(encode_record, range(len(lines)), lines)))
    ran = sps("report", str(moved))
    assert ran.code == 0, ran.err
    assert "Generated on 2 unlike machines, so times are left out" in " ".join(ran.out.split())
    assert "machine 2: cpu another." in " ".join(ran.out.split())
    table = json.loads(sps("report", str(moved), "--format", "json").out)
    single = json.loads((run / "summary.json").read_text())["rows"]
    assert [row["n"] for row in table["rows"]] == [8] * 4
    for row, alone in zip(table["rows"], single, strict=True):
        for name in ("alpha", "block_efficiency", "quality.rouge2"):
            assert row["metrics"][name] == alone["metrics"][name]
        assert row["timed"] == 0
        assert row["metrics"]["mean_token_time_ms"] is row["metrics"]["speedup"] is None
    assert sps("report", str(moved), "--against", str(run)).code == 0
    conclude_run(moved)
    assert json.loads((moved / "summary.json").read_text()) == table


def test_what_is_no_run_is_refused(sps, run, tmp_path):
    assert sps("report", str(tmp_path / "absent")).code == Exit.MISSING
    log = run / "records-00-of-01.jsonl"
    log.write_bytes(log.read_bytes().replace(b"the", b"teh", 1).replace(b'"n":3', b'"n":4', 1))
    ran = sps("report", str(run))
    assert ran.code == Exit.DATA
    assert "damaged record" in ran.err


def test_a_page_and_parquet_go_to_files(sps, run, tmp_path):
    for form, start, more in (("html", b"<!doctype html>", ()), ("parquet", b"PAR1", BY_GROUP)):
        out = tmp_path / f"run.{form}"
        ran = sps("report", str(run), "--format", form, *more, "--out", str(out))
        assert ran.code == 0, ran.err
        assert out.read_bytes().startswith(start)
        assert "Traceback" not in ran.err


def test_the_command_shows_files_and_refuses_what_only_runs_have(sps, tmp_path):
    every = [str(path) for path in sorted(RESULTS.iterdir())]
    shown = sps("report", *every)
    assert shown.code == Exit.OK
    assert shown.out.count("Not comparable: alpha:") == 1
    assert "position 4 accepted, of all rounds" in shown.out
    made = json.loads(sps("report", *every, "--format", "json").out)
    assert len(made) == 6
    out = tmp_path / "report.txt"
    assert sps("report", every[0], "--out", str(out)).code == Exit.OK
    assert "AIPerf" in out.read_text()
    for wrong in (["--by", "group"], ["--format", "csv"], [str(tmp_path)]):
        refused = sps("report", every[0], *wrong)
        assert refused.code == Exit.USAGE
        assert refused.err.count("\n") == 1
