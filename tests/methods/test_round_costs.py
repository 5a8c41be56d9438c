"""Costs of a round: measured once, kept for a machine, and written into cells as numbers."""

import json
from dataclasses import replace

import pytest
import torch

import spsbench
from spsbench.methods import measured_costs, round_costs
from spsbench.methods.measured_costs import learn_costs, to_round_costs
from spsbench.methods.resolve import resolve
from spsbench.methods.round_costs import RoundCosts, keep_costs, known_costs, with_costs
from spsbench.settings.grid import make_request

COSTS = RoundCosts(0.1, (0.2, 0.4, 0.6, 0.8, 1.0, 1.2), 0.05)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(round_costs, "_known", {})
    return tmp_path


@pytest.fixture(scope="module")
def nano():
    return spsbench.load(target="nano", offline=True)


@pytest.fixture
def cell():
    return make_request(target="nano", schedule="payoff:costs=here,most=5", max_new_tokens=16)


def test_a_cell_gets_the_costs_that_are_kept_as_numbers(cache, cell, monkeypatch):
    keep_costs(cell, COSTS)
    resolved = resolve(cell)
    row = "0.2-0.4-0.6-0.8-1-1.2"
    assert str(resolved.schedule) == f"payoff:draft=0.1,row={row},fixed=0.05,most=5"
    assert resolve(resolved.to_request()) == resolved
    (kept,) = (cache / "spsbench" / "costs").iterdir()
    kept.write_text(json.dumps({}))
    assert with_costs(cell).schedule == resolved.schedule  # of this process
    monkeypatch.setattr(round_costs, "_known", {})
    assert known_costs(cell) is None


@pytest.mark.parametrize(
    "content",
    [
        *("no JSON", "[]", ""),
        *(f'{{"KEY": [{values}]}}' for values in ("-1, [0.1], 0", "0.1, 0.1, 0", "0.1, [], 0")),
        '{"KEY": [0.1, [0.1, null], 0]}',
    ],
)
def test_a_damaged_file_is_as_none_and_the_usual_costs_hold(cache, cell, content, monkeypatch):
    key = round_costs.key_of(cell)
    round_costs.costs_file().write_text(content.replace("KEY", key))
    assert known_costs(cell) is None
    monkeypatch.setattr(round_costs, "instruction_set", lambda: "AVX-512")
    wide = dict(with_costs(cell).schedule.args)
    monkeypatch.setattr(round_costs, "instruction_set", lambda: "AVX2")
    narrow = dict(with_costs(cell).schedule.args)
    assert wide["row"] < narrow["row"]


def test_costs_on_a_gpu_are_kept_by_its_name(cache, cell, monkeypatch):
    keep_costs(cell, COSTS)
    on_gpu = cell.but(target=replace(cell.target, device="cuda:0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in "H100", "H200":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert known_costs(on_gpu) is None
        assert dict(with_costs(on_gpu).schedule.args)["draft"] == round_costs.USUAL["GPU"].draft
        keep_costs(on_gpu, COSTS)
        assert known_costs(on_gpu) == COSTS


def test_medians_become_costs_in_plain_passes():
    rows = (0.1, 0.2, 0.3, 0.8)  # 12 = 10 + 1 of the round + 1 a row, until rows take longer
    seconds = [(0.0, 10.0), (1.5, 12.0), (2.0, 13.0), (2.5, 14.0), (3.0, 19.0)]
    assert to_round_costs(seconds) == (0.05, rows, 0.2)  # 1.5 = 1 of the round + 0.5 a token
    fallen = [(0.0, 10.0), (1.0, 9.0), (0.7, 9.0), (0.5, 8.0)]
    assert to_round_costs(fallen) == (0.0, (0.0, 0.0, 0.0), 0.1)


def test_costs_are_measured_with_loaded_models(cache, cell, nano):
    measured = measured_costs.measured_costs(cell, nano.loaded)
    assert measured.draft >= 0
    assert measured.fixed >= 0
    assert list(measured.row) == sorted(measured.row)
    assert len(measured.row) == 6


def test_nothing_is_measured_twice_or_beside_other_work(cache, cell, nano, monkeypatch):
    counts = []
    monkeypatch.setattr(measured_costs, "measured_costs", lambda *parts: counts.append(1) or COSTS)
    monkeypatch.setattr(measured_costs, "was_disturbed", lambda before, after: True)
    learn_costs(cell, nano.loaded)
    assert known_costs(cell) is None
    monkeypatch.setattr(measured_costs, "was_disturbed", lambda before, after: False)
    learn_costs(cell, nano.loaded)
    learn_costs(cell, nano.loaded)
    assert known_costs(cell) == COSTS
    assert len(counts) == 2
