"""`sps plan` and `sps bench --record trace` as a user meets them."""

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from spsbench.planning.report import Planned, advise
from spsbench.settings.grid import make_request
from spsbench.settings.method import Drafting, Method
from spsbench.spec import Spec
from spsbench.store.manifest import RUN_SCHEMA
from tests.adapters import base_of, save_adapter
from tests.heads.writers import eagle

GOLDEN = Path(__file__).parents[1] / "golden" / str(RUN_SCHEMA)


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
    trace.unlink()  # lost: made again from the records
    assert sps(*asked, str(run), "--resume").code == 0
    assert trace.read_bytes() == before


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
    assert sps(*asked, str(out), "--dry-run", "--format", "json").code == 2


def test_several_temperatures_are_a_dry_run_each(sps, pair, prompts, tmp_path):
    asked = ["plan", prompts, "--target", pair.target, "--draft", pair.draft, "--k", "2"]
    told = sps(*asked, "--temperature", "0,0.7", "--dry-run")
    assert told.code == 0, told.err
    assert told.out.count("texts: ") == 2
    for wrong in (["0,x"], ["0,-1"], ["0,1", "--plot", "x"]):
        refused = sps(*asked, "--dry-run", "--temperature", *wrong)
        assert (refused.code, refused.err.count("--temperature")) == (2, 1), refused.err


@pytest.mark.slow
def test_several_temperatures_have_a_plan_and_a_verdict_each(sps, pair, prompts, tmp_path):
    asked = ["plan", prompts, "--target", pair.target, "--draft", pair.draft, "--drafter", "ngram"]
    asked += ["--k=2", "-n=16", "--cost-seconds=0.1", "--engine=eager", "--batch=1,2"]
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


@pytest.mark.needs_fast  # a trial trains
@pytest.mark.filterwarnings("ignore")  # PEFT's
def test_adapters_are_planned_beside_their_base_with_advice(sps, pair, prompts, tmp_path):
    adapter = str(save_adapter(tmp_path / "style", Path(pair.target)))
    asked = ["plan", "--prompts", prompts, "--target", pair.target, "--draft", pair.draft]
    asked += ["--adapter", adapter, "--k", "2", "-n", "20", "--engine", "eager", "--confirm", "0"]
    asked += ["--trial", "1"]
    rows = [json.dumps({"prompt": f"one two three {i} one two"}) for i in range(8)]
    Path(prompts).write_text("\n".join(rows))
    told = sps(*asked, "--cost-seconds", "0.1", "--json", "--out", str(tmp_path / "plans"))
    assert told.code == 0, told.err
    plans = json.loads(told.out)
    assert plans["advice"].keys() == {adapter}
    log = tmp_path / "plans/1-style/trial/log.jsonl"
    before, after = (json.loads(line)["gain"] for line in log.read_text().splitlines())
    assert f"1 steps: {before[0]:.2f}x with" in plans["advice"][adapter]
    assert f" to {after[0]:.2f}x" in plans["advice"][adapter]
    commands = [plans[name]["command"] for name in ("base", adapter)]
    assert [f"--adapter {adapter}" in command for command in commands] == [False, True]
    costs = [
        (tmp_path / "plans" / name / "costs.json").read_bytes() for name in ("base", "1-style")
    ]
    assert costs[0] == costs[1]
    assert sps(*asked, "--temperature", "0,1").code == 2
    assert sps("plan", "--target", "nano", "--draft", "nano-eagle3", "--dry-run").code == 0


@pytest.mark.filterwarnings("ignore")  # PEFT's
def test_adapters_are_planned_with_the_head_of_the_base(sps, pair, prompts, tmp_path):
    head = str(eagle(tmp_path / "head", base_of(pair.target, torch.float32)))
    adapter = str(save_adapter(tmp_path / "style", Path(pair.target)))
    asked = ["plan", "--prompts", prompts, "--target", pair.target, "--adapter", adapter]
    asked += ["--draft", head, "--k", "1,3", "-n", "12", "--confirm", "0", "--json"]
    told = sps(*asked, "--cost-seconds", "0.1", "--out", str(tmp_path / "plans"))
    assert told.code == 0, told.err
    plans = json.loads(told.out)
    rows = [row for row in plans["rows"] if row["cell"]["verifier"]["name"] == "sps"]
    assert [row["cell"]["target"].get("adapter") for row in rows] == [None, adapter]
    for row in rows:
        alpha, tau = (row["metrics"][n]["mean"] for n in ("alpha", "terms.predicted_tau"))
        assert 0 < alpha < 1 < tau < 1 + row["k"]
    assert plans["advice"][adapter].count(f"eagle {head}, K = ") == 2
    assert sps("plan", str(tmp_path / "plans/base"), "--adapter", adapter).code == 2


Mean = namedtuple("Mean", "mean")
Figures = namedtuple("Figures", "method speedup tau")


@pytest.mark.parametrize(
    ("now", "free", "advice"),
    [(1.9, 1.2, "keep"), (1.2, 1.5, "use suffix"), (1.3, 1.1, "train it"), (0.9, 0.9, "train it")],
)
def test_advice_is_by_what_the_drafter_keeps(now, free, advice):
    head, cell = Drafting(Spec("eagle3"), "h"), make_request(drafter="eagle3", target="nano")

    def planned(*gains):
        methods, tau = (Method(head, "sps"), Method(Drafting(Spec("suffix")), "match")), Mean(2.0)
        ranked = [Figures(*pair, tau) for pair in zip(methods, map(Mean, gains), strict=True)]
        forecasts = SimpleNamespace(by_method=ranked)
        return SimpleNamespace(forecasts=forecasts, cells={methods[0]: cell}, target=cell.target)

    assert advise(planned(2.0, 1.2), planned(now, free)).startswith(advice)


def test_an_adapter_whose_plan_lacks_the_drafter_of_the_base_is_planned_with_it():
    head, other = (Figures(Method(Drafting(Spec("eagle3"), x), "sps"), Mean(2.0), 2) for x in "ho")
    forecasts, cells = (SimpleNamespace(by_method=[f]) for f in (head, other)), {other.method: None}
    base, adapted = (SimpleNamespace(forecasts=f, cells=cells, target=None) for f in forecasts)
    assert advise(base, adapted).startswith("plan the adapter with eagle3 h too")
    assert Planned.trial(base, adapted, 1, {}) == ""
