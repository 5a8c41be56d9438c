"""Measurement: agrees with a computation by hand."""

import json

import pytest
import torch

from spsbench.training.nano.measure import measure, windows

Q = torch.tensor([0.5, 0.3, 0.2])
P = torch.tensor([0.2, 0.2, 0.6])


def constant(law):
    return lambda ids: law.log().expand(*ids.shape, 3)


def test_by_hand(tmp_path):
    ids = torch.tensor([0, 1, 2, 0, 0])
    found = measure(constant(Q), constant(P), windows(ids, 4), stretches=2)
    assert found.tokens == 4
    assert found.acceptance == pytest.approx(0.6)
    losses = -Q.log()[ids[1:]], -P.log()[ids[1:]]
    assert found.target_loss == pytest.approx(losses[0].mean().item())
    assert found.draft_loss == pytest.approx(losses[1].mean().item())
    halves = losses[0].view(2, 2).mean(1).tolist()
    assert found.target_by_position == pytest.approx(halves)
    found.save(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["acceptance"] == found.acceptance


def test_skips_the_prompt():
    rows = torch.tensor([[0, 0, 0, 2, 2], [1, 1, 1, 2, 2]])
    found = measure(constant(Q), constant(P), rows, skip=3, rows=2)
    assert found.tokens == 4
    assert found.target_loss == pytest.approx(-Q[2].log().item())


def test_same_models_always_agree():
    found = measure(constant(Q), constant(Q), torch.zeros(2, 5, dtype=torch.int64))
    assert found.acceptance == pytest.approx(1)
    assert found.target_loss == found.draft_loss


def test_windows_cover_the_stream():
    assert windows(torch.arange(10), 4).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    with pytest.raises(ValueError, match="4 tokens"):
        windows(torch.arange(4), 4)


def test_refuses_stretches_that_do_not_divide():
    with pytest.raises(ValueError, match="3 stretches"):
        measure(constant(Q), constant(P), torch.zeros(1, 5, dtype=torch.int64), stretches=3)
