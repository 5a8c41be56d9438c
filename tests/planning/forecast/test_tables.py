"""What is said of costs: every figure stands in the table it is said to stand in."""

import json
from dataclasses import replace

import pytest

from spsbench.errors import DataError, UsageError
from spsbench.metrics.costs_file import dumps, loads
from spsbench.metrics.surfaces import Typical, digits, ms
from spsbench.planning.forecast.links_and_shapes import Shape, ShapeCost, parse_shapes
from spsbench.planning.forecast.tables import cost_tables, shape_rows, shape_table
from tests.planning.forecast.made import arm, costs, surface

DRAFTS = [
    ShapeCost(Shape(512, 1), "", "model wide", 1000, 400),
    ShapeCost(Shape(64, 8), "small", "model small", 1100, 400),
    ShapeCost(Shape(32, 2), "", "model dear", 10, None),
]


def shaped(**more):
    arms = {**costs().arms, "model wide": arm(1.0), "model dear": arm(30.0)}
    return costs(arms=arms, bandwidth=100.0, weights=400, **more)


def test_a_round_by_part():
    alone, rounds = cost_tables(costs(weights=400, bandwidth=100.0))
    assert alone.headings == ["cached tokens", "1 token, ms", "v(2)", "v(3)", "v(5)", "v(9)"]
    assert alone.rows[0] == ["100", "10000 (10000 to 10000)", "1.10", "1.20", "1.40", "1.80"]
    assert "reaches 40% of that speed" in alone.remarks[1]
    assert len(rounds.rows) == 6
    row = dict(zip(rounds.headings, rounds.rows[4], strict=True))
    assert (row["drafter"], row["K"], row["c"]) == ("model small", "4", "0.18")
    assert row["not explained"] == "500"
    told = [line for line in rounds.remarks if "not explained" in line]
    assert told[1].startswith("Fixed per round (model small, K = 4): 500 (500 to 500) ms")
    assert "Medians of 8 turns" in rounds.remarks[-1]


def test_a_pass_by_part_and_the_loop_around_it():
    seconds = {"head": 1.0, "linear layers": 6.0, "attention": 1.0, "norms": 0.5, "rest": 0.5}
    of_pass = {
        part: surface(lambda n, _, one=one: one * (1 + (n - 1) / 10), (1, 5, 9), [150])
        for part, one in seconds.items()
    }
    own = costs(parts=of_pass)
    _, by_part, _ = cost_tables(loads(dumps(own), "costs"))
    assert by_part.headings[-3:] == ["share of 1", "v(5)", "v(9)"]
    rows = {row[0]: row[1:] for row in by_part.rows}
    assert rows["linear layers"] == ["6000", "8400", "10800", "62%", "1.40", "1.80"]
    assert rows["law"] == ["100", "500", "900", "1%", "5.00", "9.00"]
    assert "9000 ms in all; a pass of the target's own engine takes 10500 ms" in by_part.remarks[0]
    assert own.scaled(target=2.0).parts is None
    lacking = dumps(costs(parts={"head": of_pass["head"]}))
    with pytest.raises(DataError, match="parts of a pass: expected head, linear layers"):
        loads(lacking, "costs")


def test_a_busy_machine_and_what_is_as_if_are_told():
    remarks = cost_tables(costs(busy=True, others=0.42).scaled(draft=0.5))[1].remarks
    assert "Other work had 42% of the processors" in remarks[-2]
    assert remarks[-1] == "As if draft took 0.5 times as long as it was measured."


def test_shapes_and_the_rate_they_need():
    grid = shape_table(shaped(), DRAFTS)
    assert [row[0] for row in grid.rows] == ["32x2", "64x8 (small)", "512x1"]
    dear, small, wide = (dict(zip(grid.headings, row, strict=True)) for row in grid.rows)
    assert dear["pays from alpha"] == "never"
    assert dear["memory, ms"] == "n/a"
    assert small["memory, ms"] == "4000"
    assert float(wide["pays from alpha"].split()[0]) < float(small["pays from alpha"].split()[0])
    told = [line for line in grid.remarks if " takes " in line and "of the time" in line]
    assert told == [
        "512x1 takes 0.50 (0.50 to 0.50) of the time of 64x8, with 0.91 times its numbers."
    ]


def test_shapes_as_values():
    rows = shape_rows(shaped(), DRAFTS)
    assert json.loads(json.dumps(rows)) == rows
    assert rows[0]["needed"] == {"1": None, "1.5": None, "2": None}
    assert rows[1]["c"] == pytest.approx(2 / 11)
    assert rows[2]["token_seconds"] == 1
    assert replace(shaped(), bandwidth=None).limit() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "256",
        "256x",
        "x4",
        "0x4",
        "256x0",
        "-8x2",
        "12x2",
        "99999x2",
        "256x9999",
        "8x" + "9" * 5000,
        "8x2x2",
    ],
)
def test_what_is_no_shape(text):
    with pytest.raises(UsageError, match="`shapes`"):
        parse_shapes(text)


def test_shapes_are_read_once_each():
    assert parse_shapes("256x8, 512x2,256x8") == [Shape(256, 8), Shape(512, 2)]
    assert str(Shape(256, 8)) == "256x8"
    with pytest.raises(UsageError, match="has 17 of them: expected at most 16"):
        parse_shapes(",".join(f"8x{depth}" for depth in range(1, 18)))
    with pytest.raises(UsageError, match="at most 256 layers"):
        parse_shapes("8x257")


def test_digits():
    assert [digits(x) for x in (0.004, 0.5, 9.99, 12.34, 456.7, -0.2)] == [
        *("0.00", "0.50", "9.99", "12.3", "457", "-0.20")
    ]
    assert ms(Typical(0.0052, 0.005, 0.0061), interval=True) == "5.20 (5.00 to 6.10)"
