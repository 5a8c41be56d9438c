"""What is said of costs: every figure stands in the table it is said to stand in."""

from spsbench.metrics.surfaces import Typical, digits, ms
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


def test_a_busy_machine_and_what_is_as_if_are_told():
    remarks = rounds(costs(busy=True, others=0.42).scaled(draft=0.5)).remarks
    assert "Other work had 42% of the processors" in remarks[-2]
    assert remarks[-1] == "As if draft took 0.5 times as long as it was measured."


def test_digits():
    assert [digits(x) for x in (0.004, 0.5, 9.99, 12.34, 456.7, -0.2)] == [
        *("0.00", "0.50", "9.99", "12.3", "457", "-0.20")
    ]
    assert ms(Typical(0.0052, 0.005, 0.0061), interval=True) == "5.20 (5.00 to 6.10)"
