"""The price of a round from ratios, and expected rounds in the sums of a cell."""

import numpy as np
import pytest

from spsbench.metrics.costs import PLAIN, Costs
from spsbench.metrics.sums import AT, Tally, Totals
from tests.planning.forecast.made import arm, costs


def test_ratios_price_drafted_tokens_and_further_rows_in_plain_passes() -> None:
    by_hand = Costs.of_ratios(0.05, {"model": 0.1, "ngram": 0.0})
    assert by_hand.round(PLAIN, 0, 0, 500).sum(0) == pytest.approx([1.0])
    assert by_hand.round("model", 4, 4, 500).sum(0) == pytest.approx([1 + 4 * 0.1 + 4 * 0.05])
    assert by_hand.round("ngram", 4, 2, 500).sum(0) == pytest.approx([1 + 2 * 0.05])
    assert by_hand.round("model", 4, 0, 500).sum(0) == pytest.approx([1 + 4 * 0.1])


def test_a_round_with_a_draft_takes_as_long_as_a_plain_one_at_least() -> None:
    arms = {PLAIN: arm(0.0, verifier="match"), "model small": arm(2.0, fixed=-6.0)}
    measured = costs(arms=arms)
    plain = np.median(measured.round(PLAIN, 0, 0, 150).sum(0))
    cheap = costs(arms=arms, passes=measured.passes.times(1e-3))
    assert np.median(cheap.round("model small", 1, 1, 150).sum(0)) >= np.median(
        cheap.round(PLAIN, 0, 0, 150).sum(0)
    )
    looked_for = measured.round("model small", 4, 0, 150).sum(0)
    assert np.median(looked_for) == pytest.approx(plain + 4 * 2.0)


def test_expected_rounds_of_one_key_share_a_row() -> None:
    tally = Tally(slots=2, horizon=128, k=2)
    sums = Totals(4, 2.5, 5, 1.5, 0, 0, 1.5, 2.5)
    for key in ((0, 0), (1, 0), (0, 0)):
        tally.add_expected(key, sums, [0.5] * 4, [1.0] * 2)
    assert tally.rows[:, AT["rounds"]] == pytest.approx([5.0, 2.5])
    assert tally.rows[:, len(AT)] == pytest.approx([1.0, 0.5])
