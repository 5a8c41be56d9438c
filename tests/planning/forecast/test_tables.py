"""What is said of costs: every figure stands in the table it is said to stand in."""

from spsbench.planning.forecast.tables import passes, rounds
from tests.planning.forecast.made import costs


def test_a_round_by_part():
    measured = costs(weights=400, bandwidth=100.0)
    alone, by_part = passes(measured), rounds(measured)
    assert alone.headings == ["cached tokens", "1 token, ms", "v(2)", "v(3)", "v(5)", "v(9)"]
    assert alone.rows[0] == ["100", "10000 (10000 to 10000)", "1.10", "1.20", "1.40", "1.80"]
    assert "reaches 40% of that speed" in alone.remarks[1]
    assert len(by_part.rows) == 6
    row = dict(zip(by_part.headings, by_part.rows[4], strict=True))
    assert (row["drafter"], row["K"], row["c"]) == ("model small", "4", "0.18")
    assert row["not explained"] == "500"
    told = [line for line in by_part.remarks if "not explained" in line]
    assert told[1].startswith("Fixed per round (model small, K = 4): 500 (500 to 500) ms")
    assert "Medians of 8 turns" in by_part.remarks[-1]
