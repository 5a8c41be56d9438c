"""What is measured on a busy machine is flagged, and what can be is measured again."""

from dataclasses import replace

import pytest

from spsbench.benchmark import models
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.remarks import ceilings
from spsbench.store.manifest import Manifest
from spsbench.store.provenance import bandwidth_before
from spsbench.store.run import open_run
from tests.simulation import cell
from tests.store import made

ROW = Summary(
    cell=cell(0), samples=9, n=9, failures=0, cut=0, timed=9, horizon=9,
    mean_token_time_ms=Estimate(10.0, 9.0, 11.0, 9),
)  # fmt: skip


@pytest.fixture
def rates(monkeypatch):
    """What each measurement will find: bytes a second, and whether under load."""
    coming = []
    monkeypatch.setattr(models, "read_bandwidth", lambda threads: coming[0][0])
    monkeypatch.setattr(models, "loaded", lambda before, after: coming.pop(0)[1])
    yield coming
    assert coming == []


def test_a_bandwidth_under_load_is_flagged_and_the_better_of_two_taken(rates):
    rates += [(2e9, True), (5e9, False), (1e9, True)]
    first = {**models.measured(None), "weights": {"large": 10}}
    assert first == {"bandwidth": 2e9, "loaded": True, "weights": {"large": 10}}
    assert models.measured_again(first, None) == {**first, "bandwidth": 5e9, "loaded": False}
    assert models.measured_again(first, None) == first


def test_a_start_is_amended_in_the_manifest(tmp_path):
    with open_run(tmp_path, made.manifest()) as writer:
        writer.amend(memory={"weights": {}, "bandwidth": 2e9, "loaded": True})
        assert bandwidth_before(tmp_path, made.manifest().provenance, None) is None
        writer.amend(memory={"weights": {}, "bandwidth": 5e9, "loaded": False})
        known = Manifest.load(tmp_path)
    assert known.segments == writer.manifest.segments
    assert len(known.segments) == 1
    assert known.segments[0]["provenance"]["memory"]["bandwidth"] == 5e9
    assert bandwidth_before(tmp_path, made.manifest().provenance, None) == 5e9


def test_the_bound_of_memory_says_that_it_was_disturbed():
    memory = {"weights": {"large": 1e7}, "bandwidth": 1e10, "loaded": True}
    (line,) = ceilings([ROW], {"memory": memory})
    assert "10.0 GB/s, measured under load, so it may be higher" in line
    (line,) = ceilings([ROW], {"memory": memory | {"loaded": False}})
    assert "under load" not in line
    slow = replace(ROW, mean_token_time_ms=None, with_load={"mean_token_time_ms": ROW.speedup})
    assert ceilings([slow], {"memory": memory}) == []
