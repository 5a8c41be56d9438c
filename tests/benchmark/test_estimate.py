"""The estimate of a run comes from a few short generations, however many cells it has."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from spsbench.benchmark import estimate as module
from spsbench.benchmark.estimate import Cost, between, ends_of, estimate
from spsbench.settings.experiment import plan
from spsbench.settings.sweep import sweep


@pytest.fixture
def probed(monkeypatch):
    """K and tokens of every generation that is made; each token takes 0.1 s and 0.01 s a K."""
    made = []

    def fake(cell, models, job):
        made.append((cell.k, module.TOKENS))
        return Cost(cell.k or 0, 0.0, 0.1 + 0.01 * (cell.k or 0))

    monkeypatch.setattr(module, "cost", fake)
    monkeypatch.setattr(module, "fitting", lambda part, models: lambda prompt: True)
    return made


def test_a_sweep_of_sixteen_cells_takes_three_probes(probed):
    asked = {"task": "latency", "target": "T", "draft": "D", "k": "1..15", "max_new_tokens": 100}
    experiment = plan([sweep(asked)])
    lines = list(estimate(experiment, lambda cell: SimpleNamespace(), Path("out")))
    assert [k for k, _ in probed] == [0, 1, 15]
    assert len([line for line in lines if "generations of up to" in line]) == 16
    assert "from 3 generations of 8 tokens" in "".join(lines)


def test_what_lies_between_is_interpolated():
    costs = [Cost(1, 1.0, 0.1), Cost(5, 3.0, 0.3)]
    assert between(costs, 3) == pytest.approx((3, 2.0, 0.2))
    assert between(costs, 9)[1:] == pytest.approx((3.0, 0.3))
    assert between(costs[:1], 4) == pytest.approx((4, 1.0, 0.1))
    assert Cost(1, 1.0, 0.5).of(10) == 6.0


def test_probing_ends_after_some_seconds(probed, monkeypatch):
    monkeypatch.setattr(module, "ENOUGH", -1.0)
    experiment = plan([sweep({"task": "latency", "target": "T", "k": "2,4"})])
    lines = list(estimate(experiment, lambda cell: SimpleNamespace(), Path("out")))
    assert len(probed) == 1
    assert len(lines) >= 4
    assert len(ends_of(experiment.cells)) == 3
