"""Traces by workers: what one process writes, in another order."""

import json

import pytest

from spsbench.benchmark.bench import bench
from spsbench.benchmark.trace_draft import DraftTracer
from spsbench.benchmark.trace_run import Tracing
from spsbench.benchmark.worker_traces import Unit
from spsbench.errors import UsageError
from spsbench.planning.plan import plan
from spsbench.store.traces import read_traces
from spsbench.workers.map_units import BrokenOffError
from tests.folders import random_model, save
from tests.workers.compared import bare, traced
from tests.workers.inline import inline


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    rows = ({"id": str(i), "prompt": f"one two three {i} one two"} for i in range(4))
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return {
        "task": f"jsonl:path={path}",
        "target": str(save(folder / "target", random_model())),
        "draft": str(save(folder / "draft", random_model(noise=0.1))),
        "engine": "eager",
        "max_new_tokens": 3,
        "k": 2,
        "warmup": 0,
        "record": "trace",
        "offline": True,
    }


@pytest.fixture(scope="module")
def here(asked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "here"
    bench(**asked, out=folder)
    return folder


def test_the_same_traces_whoever_looks(asked, here, tmp_path, monkeypatch):
    there, said = tmp_path / "there", []
    traces = iter([False, True])
    pools = inline(monkeypatch, lambda unit: isinstance(unit, Unit) and next(traces, False))
    bench(**asked, out=there, on="processes:2", say=said.append)
    assert bare(there) == bare(here)
    assert traced(there) == traced(here)
    assert list(read_traces([there]).texts) == list(read_traces([here]).texts)
    assert any(" is lost (SIGKILL)" in line for line in said)
    before = {path: path.read_bytes() for path in there.glob("traces-*")}
    bench(**asked, out=there, on="processes:2", resume=True)
    assert {path: path.read_bytes() for path in there.glob("traces-*")} == before
    assert len(pools) == 2, "no worker starts for what is there"


def test_what_cannot_be_traced_is_told_by_workers(asked, here, tmp_path, monkeypatch):
    """The driver loads no model, so it does not know; it hands nothing out for it afterwards."""
    monkeypatch.setattr(DraftTracer, "unfit", "it draws on hidden states of the target")
    pools = inline(monkeypatch)
    there, said = tmp_path / "there", []
    bench(**asked, out=there, on="processes:2", say=said.append)
    assert sum("no trace of model" in line for line in said) == 1
    found = read_traces([there])
    assert len(found.texts) == 4
    assert not found.along
    bench(**asked, out=there, on="processes:2", resume=True)
    assert len(pools[2].given) <= 4, "the first result tells it"
    assert read_traces([there]).texts.keys() == found.texts.keys()


@pytest.mark.slow  # test_texts has the same of texts
def test_a_text_that_cannot_be_traced_is_said_and_the_others_are(
    asked, here, tmp_path, monkeypatch
):
    inline(monkeypatch)
    trace = Tracing.__call__

    def spoilt(self, each):
        if each.key[1] == "3":
            raise ValueError("spoilt")
        return trace(self, each)

    there, said = tmp_path / "there", []
    with monkeypatch.context() as patch:
        patch.setattr(Tracing, "__call__", spoilt)
        with pytest.raises(BrokenOffError, match="1 texts without a trace"):
            bench(**asked, out=there, on="processes:2", say=said.append)
    assert any("gave up the trace of 3: ValueError: spoilt" in line for line in said)
    assert len(read_traces([there]).texts) == 3
    bench(**asked, out=there, resume=True)
    assert traced(there) == traced(here)


def test_a_plan_of_traces_has_nothing_for_workers(tmp_path):
    with pytest.raises(UsageError, match="--trace with --on"):
        plan(trace=[str(tmp_path)], on="processes:2")
