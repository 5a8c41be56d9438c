"""Runs with traces over workers: they make the records, and the driver traces along them."""

import json

import pytest

from spsbench.benchmark.bench import bench
from spsbench.errors import UsageError
from spsbench.planning.plan import plan
from spsbench.store.log import iterate
from tests.folders import random_model, save
from tests.workers.compared import bare
from tests.workers.inline import inline


def lines_of_traces(folder):
    return [list(iterate(path)) for path in sorted(folder.glob("traces-*.jsonl"))]


def test_the_driver_traces_what_workers_made(tmp_path, monkeypatch):
    rows = ({"id": str(i), "prompt": f"one two three {i} one two"} for i in range(2))
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {
        "task": f"jsonl:path={path}",
        "target": str(save(tmp_path / "target", random_model())),
        "draft": str(save(tmp_path / "draft", random_model(noise=0.1))),
        "engine": "eager",
        "max_new_tokens": 3,
        "k": 2,
        "warmup": 0,
        "record": "trace",
        "offline": True,
    }
    here, there = tmp_path / "here", tmp_path / "there"
    bench(**options, out=here)
    pools = inline(monkeypatch)
    bench(**options, out=there, on="processes:2")
    assert len(pools) == 1
    assert bare(there) == bare(here)
    traces = lines_of_traces(here)
    assert traces
    assert lines_of_traces(there) == traces


def test_a_plan_of_traces_has_nothing_for_workers(tmp_path):
    with pytest.raises(UsageError, match="`trace` with `on`"):
        plan(trace=[str(tmp_path)], on="processes:2")
