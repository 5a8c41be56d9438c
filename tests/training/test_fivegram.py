"""The n-gram baseline: laws that sum to one, and learning."""

import numpy as np
import pytest

from spsbench.training.nano.fivegram import fit

IDS = np.random.default_rng(0).integers(0, 7, 400)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_laws_sum_to_one(order):
    model = fit(IDS, 7, order)
    for position in (0, 1, 3, 50, 399):
        law = model.probabilities(IDS, position)
        assert law.min() > 0
        assert law.sum() == pytest.approx(1)
        assert model.losses(IDS)[position] == pytest.approx(-np.log(law[IDS[position]]))


def test_unseen_context_still_gives_a_law():
    model = fit(np.array([0, 1, 2, 0, 1, 2, 0, 1]), 5)
    assert model.probabilities(np.array([4, 4, 4, 4, 4]), 4).sum() == pytest.approx(1)


def test_bigram_by_hand():
    # 0 1 0 1 0 2: bigrams 01 x2, 10 x2, 02 x1; discounts clip to Y = 1/5, D1 = 0.2, D2 = 1.7.
    model = fit(np.array([0, 1, 0, 1, 0, 2]), 3, order=2)
    unigram = model.levels[0]
    assert unigram.grams.tolist() == [0, 1, 2]  # each follows exactly one different token
    top = model.levels[1]
    assert top.total.tolist() == [3.0, 2.0]
    law = model.probabilities(np.array([0, 1]), 1)
    lower = fit(np.array([0, 1, 0, 1, 0, 2]), 3, order=2).probabilities(np.array([1]), 0)
    kept = dict(zip(top.grams.tolist(), top.kept.tolist(), strict=True))
    assert law[1] == pytest.approx((kept[1] + top.freed[0] * lower[1]) / 3)


def test_longer_contexts_help_on_repetition():
    ids = np.tile(np.random.default_rng(1).integers(0, 50, 60), 5)
    losses = [fit(ids, 50, order).losses(ids).mean() for order in (1, 2, 4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < 0.5


def test_refuses_keys_that_do_not_fit():
    with pytest.raises(ValueError, match="int64"):
        fit(IDS, 50_000, 5)
    with pytest.raises(ValueError, match="too few"):
        fit(IDS[:3], 7, 5)
