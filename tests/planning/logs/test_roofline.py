"""Costs of rounds by rooflines, and the closed forms."""

import pytest

from spsbench.metrics.costs import PLAIN
from spsbench.planning.logs.assumptions import parse_roofline, roofline_costs, seconds
from tests.oracles.forecasts import NGRAM


def test_a_roofline_is_flat_until_it_computes():
    fields = parse_roofline("bandwidth=1e12,flops=1e15,params=1e9")
    costs = roofline_costs(fields, {NGRAM: False}, [1, 1000], 8)

    def passes(drafted, batch):
        plain = costs.round(PLAIN, 0, 0, 100, batch=batch).sum()
        return costs.round(NGRAM, 8, drafted, 100, batch=batch).sum() / plain

    assert [passes(n, 1) for n in range(9)] == [1.0] * 9
    assert [passes(n, 1000) for n in range(3)] == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_rounds_of_a_roofline_take_its_seconds_at_every_context(batch):
    fields = parse_roofline("h100,params=8e9,kv_bytes=131072,draft_params=5e8")
    costs = roofline_costs(fields, {"model": True}, [batch], 8)
    for drafted in (1, 4, 8):
        for step in (0, 7, 90, 2000):
            context = step * 16 + 8
            by_hand = seconds(fields, 8e9, drafted + 1, context, batch)
            by_hand += 8 * seconds(fields, 5e8, 1, 0, batch)
            round_seconds = costs.round("model", 8, drafted, context, batch=batch).sum()
            assert round_seconds == pytest.approx(by_hand, rel=1e-9)
