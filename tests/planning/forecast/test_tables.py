"""What is said of costs: every figure stands in the table it is said to stand in."""

from spsbench.planning.forecast.tables import rounds
from tests.planning.forecast.made import costs


def test_a_round_by_part():
    by_part = rounds(costs())
    assert len(by_part.rows) == 6
    row = dict(zip(by_part.headings, by_part.rows[4], strict=True))
    assert (row["drafter"], row["K"], row["c"]) == ("model small", "4", "0.18")
    assert row["not explained"] == "500"
    assert "Medians of 8 turns" in by_part.remarks[-1]
