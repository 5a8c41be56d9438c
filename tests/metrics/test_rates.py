"""Figures from records, each against arithmetic by hand."""

import pytest

from spsbench.metrics.rates import SHOWN, estimate_speedup, generation_metrics, segments
from spsbench.metrics.summaries import summaries
from spsbench.settings.records import RoundRecord
from tests.simulation import PREFILL, cell, record

ROUND = RoundRecord(4, 3, 2, 3, 2.4, 0.010, 0.004, 0.005)


@pytest.mark.parametrize("rounds", [[ROUND, ROUND._replace(tested=-1, overlap=None)], []])
def test_figures_of_a_generation_are_those_of_a_table_of_it_alone(rounds):
    own = generation_metrics(rounds, PREFILL)
    (row,) = summaries([cell(4)], [record(cell(4), "a", 0, rounds)])
    assert (own.tokens, own.rounds) == (sum(r.emitted for r in rounds), len(rounds))
    assert own.alpha == (pytest.approx(0.8) if rounds else None)
    for name in SHOWN & row.figures.keys():
        estimate = row.figures[name]
        assert getattr(own, name) == (None if estimate is None else pytest.approx(estimate.mean))


def test_segments_leave_no_round_out_but_the_last():
    rounds = [ROUND._replace(emitted=n, seconds=n / 10) for n in (3, 3, 3, 8, 1, 1)]
    assert segments(rounds, 8) == [(pytest.approx(0.9), 9), (pytest.approx(0.8), 8)]
    assert segments([], 8) == []


def test_speedup_of_constant_times_or_few_pairs_has_no_interval():
    baseline, other = [(2.0, 10)] * 9, [(1.0, 20)] * 9
    assert estimate_speedup(baseline, other)[:4] == (4.0, None, None, 9)
    assert estimate_speedup([(1.0, 1), (3.0, 1)] * 3, [(1.0, 1)] * 6)[:4] == (2.0, None, None, 6)


def test_speedup_weighs_tokens_and_seconds_not_ratios():
    estimate = estimate_speedup([(1.0, 1), (3.0, 3)] * 4, [(1.0, 1), (1.0, 3)] * 4)
    assert estimate.mean == pytest.approx(2.0)
    assert estimate.low < 2.0 < estimate.high


@pytest.mark.parametrize(
    ("baseline", "other"),
    [([], []), ([(1.0, 1)], []), ([(1.0, 0)], [(1.0, 1)]), ([(0.0, 1)], [(1.0, 1)])],
)
def test_speedup_refuses_what_it_cannot_divide(baseline, other):
    with pytest.raises(ValueError):
        estimate_speedup(baseline, other)
