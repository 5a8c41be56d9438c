"""Figures from records, each against arithmetic by hand."""

import pytest

from spsbench.metrics.rates import metrics, segments, speedup
from spsbench.settings.records import RoundRecord


def record(
    drafted=4,
    tested=3,
    accepted=2,
    emitted=3,
    overlap=2.4,
    seconds=0.010,
    draft_seconds=0.004,
    target_seconds=0.005,
):
    return RoundRecord(
        drafted, tested, accepted, emitted, overlap, seconds, draft_seconds, target_seconds
    )


TWO = [record(), record(tested=4, accepted=4, emitted=5, overlap=3.2, seconds=0.030)]


def test_the_figures_of_two_rounds():
    m = metrics(TWO, prefill_seconds=0.1)
    assert (m.tokens, m.rounds, m.drafted, m.accepted) == (8, 2, 8, 6)
    assert m.alpha == pytest.approx((2.4 + 3.2) / 7)
    assert m.draft_acceptance == pytest.approx(6 / 8)
    assert m.block_efficiency == pytest.approx(4)
    assert m.mean_token_time_ms == pytest.approx(40 / 8)
    assert m.loop_time_ms == pytest.approx(20)
    assert m.prefill_ms == pytest.approx(100)
    assert m.ttft_ms == pytest.approx(110)
    assert m.draft_share == pytest.approx(8 / 40)
    assert m.target_share == pytest.approx(10 / 40)
    assert m.verify_share == pytest.approx(1 - 18 / 40)


def test_nothing_generated():
    m = metrics([], prefill_seconds=0.0)
    assert (m.tokens, m.rounds, m.prefill_ms) == (0, 0, 0.0)
    assert m.alpha is m.block_efficiency is m.mean_token_time_ms is m.ttft_ms is None
    assert m.draft_share is m.target_share is m.verify_share is None


def test_rounds_that_do_not_test_one_by_one_have_no_alpha():
    assert metrics([record(tested=-1, overlap=None)], 0.0).alpha is None
    assert metrics([record(drafted=0, tested=0, overlap=0.0)], 0.0).alpha is None
    mixed = [record(tested=-1, overlap=None), record(tested=2, overlap=1.0)]
    assert metrics(mixed, 0.0).alpha == 0.5


def test_segments_leave_no_round_out_but_the_last():
    rounds = [record(emitted=n, seconds=n / 10) for n in (3, 3, 3, 8, 1, 1)]
    assert segments(rounds, 8) == [(pytest.approx(0.9), 9), (pytest.approx(0.8), 8)]
    assert segments([], 8) == []


def test_speedup_of_constant_times_or_few_pairs_has_no_interval():
    baseline, other = [(2.0, 10)] * 9, [(1.0, 20)] * 9
    assert speedup(baseline, other)[:4] == (4.0, None, None, 9)
    assert speedup([(1.0, 1), (3.0, 1)] * 3, [(1.0, 1)] * 6)[:4] == (2.0, None, None, 6)


def test_speedup_weighs_tokens_and_seconds_not_ratios():
    estimate = speedup([(1.0, 1), (3.0, 3)] * 4, [(1.0, 1), (1.0, 3)] * 4)
    assert estimate.mean == pytest.approx(2.0)
    assert estimate.low < 2.0 < estimate.high


@pytest.mark.parametrize(
    ("baseline", "other"),
    [([], []), ([(1.0, 1)], []), ([(1.0, 0)], [(1.0, 1)]), ([(0.0, 1)], [(1.0, 1)])],
)
def test_speedup_refuses_what_it_cannot_divide(baseline, other):
    with pytest.raises(ValueError):
        speedup(baseline, other)
