"""Acceptance at a given rate, whatever the models say."""

import pytest
import torch

from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Draft, Drawn, Guarantee
from spsbench.methods.verifiers.synthetic import Synthetic

Q = torch.full((5, 8), 1 / 8)
DRAFT = Draft(torch.tensor([1, 2, 3, 4]), Q[:4])


def accepted(alpha, index):
    verdict = Synthetic(alpha)(DRAFT, Q, PhiloxStream(0).round(index))
    kept = [node for node in verdict.path.tolist() if node >= 0]
    assert kept == list(range(len(kept)))
    assert int(verdict.tested) == min(len(kept) + 1, 4)
    return len(kept)


def test_the_rate_is_the_given_one():
    assert {accepted(1.0, i) for i in range(20)} == {4}
    assert {accepted(0.0, i) for i in range(20)} == {0}
    counts = [accepted(0.8, i) for i in range(1000)]
    expected = 0.8 + 0.8**2 + 0.8**3 + 0.8**4
    assert sum(counts) / len(counts) == pytest.approx(expected, abs=0.16)


def test_an_empty_draft_is_a_plain_step():
    empty = Draft(torch.empty(0, dtype=torch.int64), None)
    verdict = Synthetic()(empty, Q[:1], PhiloxStream(0).round(0))
    assert verdict.path.tolist() == []
    assert int(verdict.tested) == 0


def test_it_promises_nothing_and_refuses_trees():
    assert Synthetic.guarantee is Guarantee.LOSSY
    assert Synthetic().refuses(Drawn.IID, False) is None
    assert "one chain" in str(Synthetic().refuses(Drawn.IID, True))


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_rate_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError, match="expected 0 to 1"):
        Synthetic(alpha)
