"""Targets over ranks, predicted: against numbers that were reckoned by hand."""

import json

import numpy as np
import pytest

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.planning.forecast.break_even import needed_alpha
from spsbench.planning.forecast.links_and_shapes import (
    ConstantLink,
    LinearLink,
    MeasuredLink,
    Sizes,
    link_json,
    over_ranks,
    parse_link,
)
from spsbench.planning.forecast.tables import Placement, placement_rows, placement_table, sentence
from tests.planning.forecast.made import costs

DEEP = Sizes(layers=80, width=8192, vocabulary=32000, item=2)  # Chinchilla's, Chen et al. 2023
WIDE = Sizes(layers=8, width=6144, vocabulary=32000, item=2)
SMALL = Sizes(layers=2, width=100, vocabulary=1000, item=4)
ARM = "model small"


def test_links_as_they_are_written(tmp_path):
    assert parse_link("0.05") == ConstantLink(5e-5), "a bare number is in ms"
    assert parse_link("2us") == ConstantLink(2e-6)
    assert parse_link("0.02ms:50GB/s") == LinearLink(2e-5, 5e10)
    assert parse_link("1ms:100Gbit/s") == LinearLink(1e-3, 1.25e10)
    file = tmp_path / "link.json"
    file.write_text(json.dumps(link_json(4, [(512.0, 1e-4), (1e6, 1e-3)])))
    assert parse_link(str(file)) == MeasuredLink({4: [(512.0, 1e-4), (1e6, 1e-3)]}, str(file))
    for wrong in ("fast", "-1ms", "1ms:", "1ms:fast", "1ms:0GB/s", "", "1e999"):
        with pytest.raises(UsageError, match="expected a time"):
            parse_link(wrong)
    with pytest.raises(MissingError, match="no file"):
        parse_link("there/is/none.json")
    for odd in ("{}", "[]", "x", json.dumps(link_json(1, [(1, 1)])), json.dumps(link_json(2, []))):
        file.write_text(odd)
        with pytest.raises(DataError, match="holds no link"):
            parse_link(str(file))


def test_exchanges_take_what_the_formulas_say():
    wire = LinearLink(latency=1.0, bandwidth=10.0)
    assert wire.reduce(2, 20) == 3.0, "one step: 1 + 20/10"
    assert wire.reduce(8, 20) == 9.0, "three steps of all of it"
    assert wire.reduce(8, 8000) == 14 * (1 + 100), "a ring: 14 steps of an eighth"
    assert wire.gather(4, 20) == 2 + 0.75 * 2
    measured = MeasuredLink({2: [(100.0, 1.0), (300.0, 2.0)]}, "here")
    assert measured.reduce(2, 50) == 1.0, "no less than the least message"
    assert measured.reduce(2, 200) == 1.5
    assert measured.reduce(2, 500) == pytest.approx(3.0), "on as between the last two"
    assert measured.reduce(8, 200) == pytest.approx(4.5), "three steps for one"


def test_a_pass_waits_as_the_paper_reckons():
    """161 all-reduces, one gather, two messages: at 0.088 ms each more than its 14.1 ms."""
    assert DEEP.waits(16, ConstantLink(8.8e-5), 5) == pytest.approx((161 + 1 + 2) * 8.8e-5)
    assert DEEP.waits(16, ConstantLink(8.8e-5), 5) > 14.1e-3
    assert WIDE.waits(16, ConstantLink(0.11e-3), 1) == pytest.approx(20 * 0.11e-3)
    wire = LinearLink(1e-5, 1e11)
    states, logits = 8192 * 2 * 5, 32000 * 2 * 5
    by_hand = 161 * wire.reduce(4, states) + wire.gather(4, logits) + 2 * wire.reduce(4, 512)
    assert DEEP.waits(4, wire, 5) == pytest.approx(by_hand)
    assert DEEP.waits(1, wire, 5) == 0, "one rank waits for nobody"


def test_costs_are_divided_and_wait():
    """A pass of 10 s over 2 ranks: 5 s, and 5 all-reduces, a gather and two messages of 0.25 s."""
    link, one = ConstantLink(0.25), costs()
    two = over_ranks(one, 2, link, SMALL)
    assert two.target(1, 100).value == pytest.approx(10 / 2 + 8 * 0.25)
    assert two.target(5, 100).value == pytest.approx(14 / 2 + 2)
    assert two.draft(ARM, 4, 100).value == one.draft(ARM, 4, 100).value, "on rank 0 alone"
    both = over_ranks(one, 2, link, SMALL, {ARM: SMALL})
    assert both.draft(ARM, 4, 100).value == pytest.approx(8 / 2 + 4 * 2.0)
    assert both.draft(ARM, 8, 100).value == pytest.approx(16 / 2 + 8 * 2.0)
    sampling = [made.rules["sps"].sampling for made in (one, two)]
    assert sampling[0] is sampling[1], "rank 0's own work is not divided"
    same = over_ranks(one, 1, link, SMALL, {ARM: SMALL})
    assert np.array_equal(same.passes.seconds, one.passes.seconds)


def placements(seconds):
    one, found = costs(), []
    for ranks, shared in ((1, False), (2, False), (2, True)):
        made = over_ranks(one, ranks, ConstantLink(seconds), SMALL, {ARM: SMALL} if shared else {})
        found.append(Placement(ranks, shared, made, ARM, 100.0, None))
    return found


def test_the_better_place_of_the_draft_is_told():
    """Shared, a drafted token of 2 s takes 1 s and 8 exchanges: 0.125 s each is the border."""
    for seconds, won, told in ((0.12, "shared", "on all of them"), (0.13, "rank 0", "alone")):
        link, given = ConstantLink(seconds), placements(seconds)
        rows = placement_rows(given, link, SMALL)
        assert [row["draft"] for row in rows if row["wins"]] == ["rank 0", won]
        assert rows[2]["draft_token_seconds"] == pytest.approx(1 + 8 * seconds)
        assert rows[1]["waiting_seconds"] == pytest.approx(8 * seconds)
        assert told in sentence(given, link, SMALL)
        needed = needed_alpha(given[1].costs, ARM, 100)
        assert rows[1]["needed"]["1"] == needed._asdict()
        grid = placement_table(given, link, SMALL)
        assert {len(row) for row in grid.rows} == {len(grid.headings)}
