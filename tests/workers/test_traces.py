"""Runs with traces over workers: they make the records, and the driver traces along them."""

import json

import numpy as np
import pytest

from spsbench.benchmark.bench import bench
from spsbench.errors import UsageError
from spsbench.planning.plan import plan
from spsbench.store.traces import read_traces
from tests.folders import random_model, save
from tests.workers.compared import bare
from tests.workers.inline import inline


@pytest.mark.needs_fast
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
    mine, theirs = read_traces([here]), read_traces([there])
    assert mine.texts
    assert theirs.head == mine.head
    assert theirs.drafts == mine.drafts
    assert theirs.along.keys() == mine.along.keys()
    for key, text in mine.texts.items():  # sums of floats may part in the last bits
        assert np.allclose(theirs.texts[key].q, text.q, rtol=1e-4)
    for key, along in mine.along.items():
        assert np.allclose(theirs.along[key].p, along.p, rtol=1e-4)


def test_a_plan_of_traces_has_nothing_for_workers(tmp_path):
    with pytest.raises(UsageError):
        plan(trace=[str(tmp_path)], on="processes:2")
