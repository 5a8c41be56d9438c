"""`sps plan --shapes` as a user meets it."""

import json

import pytest

from spsbench.cli.plan import what_if
from spsbench.errors import UsageError

pytestmark = pytest.mark.usefixtures("quickly")


def test_a_row_a_shape_and_one_for_the_draft_there_is(sps, pair):
    asked = ("--target", pair.target, "--draft", pair.draft, "--engine", "eager", "--offline")
    ran = sps("plan", "--shapes", "64x1,16x3", *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    rows = {(row["width"], row["layers"]): row for row in found["shapes"]}
    assert list(rows) == [(16, 3), (32, 2), (64, 1)]
    assert rows[32, 2]["model"] == pair.draft
    assert rows[64, 1]["model"] is None
    assert all(0 < row["c.low"] <= row["c"] <= row["c.high"] for row in rows.values())
    assert found["setting"]["models"]["target"]["engine"] == "eager"
    assert list(found["setting"]["models"]) == ["target", pair.draft]


@pytest.mark.slow
def test_a_table_for_a_target_alone(sps, pair):
    ran = sps("plan", "--shapes", "16x1", "--target", pair.target, "--engine", "eager", "--offline")
    assert ran.code == 0, ran.err
    assert "16x1" in ran.out
    assert "pays from alpha" in ran.out


@pytest.mark.parametrize("asked", [["--shapes", "12x2"], ["--shapes", "256"]])
def test_what_is_no_shape_is_told_before_torch(sps, asked):
    ran = sps("plan", *asked)
    assert ran.code == 2
    assert "expected" in ran.err


def test_lists_of_one_are_their_value():
    given = {"target": ["nano"], "stop": ["a", "b"]}
    assert what_if.single(given, "--shapes") == {"target": "nano", "stop": ["a", "b"]}
    with pytest.raises(UsageError, match="--draft 2 times with --shapes"):
        what_if.single({"draft": ["a", "b"]}, "--shapes")
