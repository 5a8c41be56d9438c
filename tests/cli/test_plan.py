"""`sps plan` and `sps bench --record trace` as a user meets them."""

import json
from pathlib import Path

import pytest

from spsbench.metrics.costs_file import dumps
from spsbench.planning.plan_folder import PlanFile
from spsbench.settings.cell_from_options import make_cell
from spsbench.settings.records import SCHEMA
from tests.planning.forecast.made import costs

GOLDEN = Path(__file__).parents[1] / "golden" / str(SCHEMA)


@pytest.fixture
def prompts(tmp_path):
    rows = [{"id": str(i), "prompt": f"one two three {i} one two"} for i in range(3)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.slow
def test_a_benchmark_records_a_trace(sps, pair, prompts, tmp_path):
    asked = ["bench", f"jsonl:path={prompts}", "--record", "trace", "--engine", "eager", "-n", "8"]
    asked += ["--target", pair.target, "--draft", pair.draft, "--k", "2", "--out"]
    run = tmp_path / "run"
    made = sps(*asked, str(run))
    assert made.code == 0, made.err
    (trace,) = run.glob("traces-*.jsonl")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[0]["head"]["target.id"] == pair.target
    assert sum("along" in line for line in lines) == 3
    before = trace.read_bytes()
    again = sps(*asked, str(run), "--resume")
    assert again.code == 0
    assert trace.read_bytes() == before
    trace.write_bytes(b"".join(before.splitlines(keepends=True)[:4]))  # its end is lost
    short = sps("plan", "--trace", str(run), "--costs", str(tmp_path / "none.json"))
    assert short.code == 65
    assert "4 lines are missing at the end" in short.err
    assert sps(*asked, str(run), "--resume").code == 0
    assert trace.read_bytes() == before
    trace.unlink()  # lost: made again from the records
    assert sps(*asked, str(run), "--resume").code == 0
    assert trace.read_bytes() == before

    alone = sps("plan", "--trace", str(run), "--costs", str(tmp_path / "none.json"))
    assert alone.code == 66
    assert "cannot read" in alone.err


def test_a_dry_run_says_what_would_be_measured_without_a_model(
    sps, pair, prompts, tmp_path, monkeypatch
):
    monkeypatch.setattr("spsbench.models.cache.ModelCache.load", None)
    out = tmp_path / "plan"
    asked = ["plan", "--prompts", prompts, "--target", pair.target, "--draft", pair.draft]
    asked += ["--drafter", "model", "--drafter", "ngram", "--k", "2,4", "-n", "16", "--out"]
    told = sps(*asked, str(out), "--dry-run")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0].startswith("texts: 2 generations of up to 16 tokens of ")
    assert "ngram, along 2 texts each" in lines[1]
    assert "6 of 6 candidates" in lines[3]
    assert lines[4].startswith("real rounds: 2 candidates and ArS over 1 held back, 3 generations")
    assert lines[5] == "in all 5 generations, 80 tokens at most"
    assert not out.exists()
    for words in (["--format", "json"], ["--show-costs"]):
        assert sps(*asked, str(out), "--dry-run", *words).code == 2


def test_several_temperatures_are_a_dry_run_each(sps, pair, prompts, tmp_path):
    asked = ["plan", prompts, "--target", pair.target, "--draft", pair.draft, "--k", "2"]
    told = sps(*asked, "--temperature", "0,0.7", "--dry-run")
    assert told.code == 0, told.err
    assert told.out.count("texts: ") == 2
    for wrong in (["0,x"], ["0,-1"], ["0,1", "--show-costs"], ["0,1", "--plot", "x"]):
        refused = sps(*asked, "--dry-run", "--temperature", *wrong)
        assert (refused.code, refused.err.count("--temperature")) == (2, 1), refused.err


@pytest.mark.slow
def test_several_temperatures_have_a_plan_and_a_verdict_each(sps, pair, prompts, tmp_path):
    asked = ["plan", prompts, "--target", pair.target, "--draft", pair.draft, "--drafter", "ngram"]
    asked += [
        "--k",
        "2",
        "-n",
        "16",
        "--cost-seconds",
        "0.1",
        "--engine",
        "eager",
        "--batch",
        "1,2",
    ]
    asked += ["--temperature", "0,0.7", "--out", str(tmp_path / "plans"), "--json"]
    made = sps(*asked)
    assert made.code == 0, made.err
    tables = json.loads(made.out)
    assert [table["task"].rpartition(", ")[2] for table in tables] == ["T 0", "T 0.7"]
    assert all(table["verdict"] and table["batches"] for table in tables)
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"T0", "T0.7"}
    again = sps(*asked, "--resume")
    assert again.code == 0, again.err
    assert [table["answer"] for table in json.loads(again.out)] == [t["answer"] for t in tables]


def test_what_cannot_be_meant(sps, pair, prompts, tmp_path):
    for words, told in (
        (["bench", "latency", "--record", "trace", "--method", "sps"], "along the texts of ars"),
        (["plan", "xsum", "--prompts", prompts], "expected one of the two"),
        (["plan", "--verifier", "synthetic"], "lossy"),
        (["plan", "--k", "0"], "--k"),
        (["plan", "--schedule", "budget"], "--schedule budget decides for several texts"),
        (["plan", "--draft-cost", "0"], "a number above 0"),
        (["plan", "--shapes", "8x1", "--format", "csv"], "table or json"),
        (["plan", "--trace", str(tmp_path / "no.jsonl"), "--costs", prompts], "no such trace"),
    ):
        made = sps(*words, "--out", str(tmp_path / "x")) if words[0] == "bench" else sps(*words)
        assert made.code in (2, 66), (words, made.err)
        assert told in made.err, (words, made.err)


@pytest.fixture
def plan(tmp_path):
    """A folder of a plan, as far as its costs go."""
    folder = tmp_path / "plan"
    folder.mkdir()
    (folder / "costs.json").write_text(dumps(costs()))
    PlanFile(cells=[make_cell()], identity={}, texts=[], costs="costs.json").save(folder)
    return folder


def test_a_plan_and_a_file_show_the_same(sps, plan):
    of_plan = sps("plan", str(plan), "--show-costs")
    of_file = sps("plan", "--costs", str(plan / "costs.json"), "--show-costs")
    assert of_plan.code == of_file.code == 0, of_plan.err + of_file.err
    assert of_plan.out == of_file.out
    assert "v(5)" in of_plan.out
    assert "not explained" in of_plan.out


def test_tables_as_values(sps, plan):
    alone, rounds = json.loads(sps("plan", str(plan), "--show-costs", "--json").out)
    assert alone["rows"][0][0] == "100"
    assert len(rounds["headings"]) == len(rounds["rows"][0])


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (["--show-costs"], 2, "Name one of the two"),
        (["nowhere", "--show-costs"], 66, "no plan"),
        (["--costs", "nowhere", "--show-costs"], 66, "nowhere"),
        (["--show-costs", "--plot", "x"], 2, "no --plot"),
        (["xsum", "--shapes", "16x1"], 2, "--shapes with xsum"),
    ],
)
def test_what_cannot_be_shown(sps, asked, code, told):
    ran = sps("plan", *asked)
    assert (ran.code, told in ran.err) == (code, True), ran.err


@pytest.mark.usefixtures("quickly")
def test_a_row_a_shape_and_one_for_the_draft_there_is(sps, pair):
    asked = ("--target", pair.target, "--draft", pair.draft, "--engine", "eager", "--offline")
    ran = sps("plan", "--shapes", "64x1,16x3", *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    rows = {(row["width"], row["layers"]): row for row in found["shapes"]}
    assert list(rows) == [(16, 3), (32, 2), (64, 1)]
    assert rows[32, 2]["model"] == pair.draft
    assert rows[64, 1]["model"] is None
    assert all(0 < row["c.low"] <= row["c"] <= row["c.high"] for row in rows.values())
    assert found["setting"]["models"]["target"]["engine"] == "eager"
    assert list(found["setting"]["models"]) == ["target", pair.draft]


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_a_table_for_a_target_alone(sps, pair):
    ran = sps("plan", "--shapes", "16x1", "--target", pair.target, "--engine", "eager", "--offline")
    assert ran.code == 0, ran.err
    assert "16x1" in ran.out
    assert "pays from alpha" in ran.out


@pytest.mark.parametrize("asked", [["--shapes", "12x2"], ["--shapes", "256"]])
def test_what_is_no_shape_is_told_before_torch(sps, asked):
    ran = sps("plan", *asked)
    assert ran.code == 2
    assert "expected" in ran.err


def test_each_set_is_a_drafter_to_paste(sps, pair, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"id": "1", "prompt": "the cat sat"}) + "\n")
    asked = ("--target", pair.target, "--prompts", str(data), "-n", "8", "--engine", "eager")
    ran = sps("plan", "--spare-layers", *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["texts"] == 1
    assert all(0 <= each["alpha"] <= 1 and each["cost"] < 1 for each in found["sets"])
    best = max(found["sets"], key=lambda each: each["gain"])
    assert f"--drafter {best['drafter']} -k {best['k']} " in found["command"]
    made = sps("generate", "hi", *asked[:2], "-n", "4", "--drafter", best["drafter"], "--seed", "1")
    assert made.code == 0, made.err
    several = sps("plan", "--spare-layers", *asked, "--verifier", "sps", "--verifier", "block")
    assert (several.code, "with --spare-layers: expected one" in several.err) == (2, True)
