"""Columns are chosen from the prefix alone, over whatever wire the rows come."""

import math

import numpy as np
import pytest

from spsbench.extensions.check.bets import Band, ServerAudit
from spsbench.extensions.check.columns import TopLists
from spsbench.serving.engines import last_digit
from tests.oracles.wires import LENGTH, PLACES, Wire, WireServer

LEVEL = 1e-3
SERVERS = 60
TOKENS = 20 * LENGTH


def audit_of(wire, seed, tokens=TOKENS, server=None):
    """The audit of a server, over lists whose length and digits a greedy probe tells."""
    server = server or WireServer(wire, seed)
    probed = server.text(greedy=True).stated[:4]
    lists = TopLists(min(map(len, probed)))
    digit = last_digit([logprob for row in probed for _, logprob in row])
    audit = ServerAudit("honest", Band.of_printed(digit), LEVEL, hides=wire.ends != "listed")
    while audit.tokens < tokens and not audit.alarmed:
        text = server.text()
        audit.take_text(lists.columns(text.stated, text.keys, text.own))
    return audit


def alarms(wires, servers):
    """The wires of alarms, each with its seed."""
    return [
        (wire, seed)
        for number, wire in enumerate(wires)
        for seed in range(servers)
        if audit_of(wire, 1000 * number + seed).alarmed
    ]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cap", [1, 2, 5])
def test_a_tie_with_the_last_of_a_list_accuses_nobody(place, cap):
    wire = Wire(place, cap, 1, 24, flat=True, ends="listed")
    audit = audit_of(wire, cap)
    assert not audit.alarmed, audit.alarm_line


def test_few_honest_servers_alarm_over_drawn_wires():
    assert len(alarms(map(Wire.drawn, range(6)), 2)) <= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_honest_servers_alarm_no_more_often_than_the_level_over_drawn_wires():
    assert len(alarms(map(Wire.drawn, range(30)), SERVERS)) <= 5


class Biased(WireServer):
    """Draws the likeliest token too often."""

    def __init__(self, wire, seed):
        super().__init__(wire, seed)
        sharp = self.law ** (1 / 0.7)
        self.cdf = (sharp / sharp.sum(1, keepdims=True)).cumsum(1)


@pytest.mark.parametrize("place", PLACES)
def test_a_bias_is_found_over_each_wire(place):
    wire = Wire(place, 5, 4, 24, flat=False, ends="listed")
    assert audit_of(wire, 1, 4 * TOKENS, Biased(wire, 1)).alarmed


@pytest.mark.parametrize("place", PLACES)
def test_columns_are_the_same_whichever_token_was_emitted(place):
    """After a text that has shown the wire."""
    wire = Wire(place, 4, 1, 24, flat=True, ends="listed")
    server = WireServer(wire, 3)
    for row in range(8):
        columns = set()
        for token in range(1, wire.size):
            lists = TopLists(min(map(len, server.text(greedy=True).stated)))
            for _ in range(2):
                shown = server.text()
                lists.columns(shown.stated, shown.keys, shown.own)
            own, listed = server.listed(row, token)
            made = lists.columns([listed], [f"#{token}"], [own])
            columns.add(tuple(zip(made.keys[0], made.mass[0].tolist(), strict=False)))
        assert len(columns) == 1, (row, columns)


@pytest.mark.parametrize("always", [False, True])
def test_one_listed_token_is_bet_on_where_equal_prefixes_list_the_same(always):
    """A server that lists the emitted token in place of the likeliest is not accused by it."""
    lists, audit = TopLists(1, documented=True), ServerAudit("one", level=LEVEL)
    rng, law = np.random.default_rng(0), {"#1": 0.9, "#2": 0.06, "#3": 0.04}
    for number in range(40):
        drawn = rng.choice([*law], 64, p=[*law.values()])
        tokens = ["#1"] * 64 if always else drawn.tolist()
        rows = [[(token, math.log(law[token]))] for token in tokens]
        audit.take_text(lists.columns(rows, tokens, prompt=number % 4))
    assert audit.alarmed is always


def test_rows_that_state_nothing_of_others_lower_the_power():
    law = [("#1", math.log(0.5)), ("#2", math.log(0.2)), ("#3", math.log(0.1))]
    rng = np.random.default_rng(0)
    powers = []
    for silent in (0, 3):
        lists, audit = TopLists(3), ServerAudit("one", level=LEVEL)
        for _ in range(20):
            tokens = [f"#{i}" for i in rng.choice([1, 2, 3, 4], 64, p=[0.5, 0.2, 0.1, 0.2])]
            rows = [
                [] if silent and i % 16 < silent
                else [*law, *[("#4", math.log(0.15))] * (token == "#4")]
                for i, token in enumerate(tokens)
            ]  # fmt: skip
            audit.take_text(lists.columns(rows, tokens))
        assert audit.unstated == silent * 4 * 20
        powers.append(audit.claim())
    assert powers[1] > powers[0]
