"""What a server states becomes columns of which bets are fair."""

import math

import numpy as np
import pytest

from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.extensions.check.greedy import third_is_a_bug
from spsbench.extensions.check.laws import Columns, ServerArm, columns
from spsbench.serving.engines import Answer
from tests.extensions.check.test_level import by_itself, compared_with

TOP = 5


def row(*entries):
    return [(key, math.log(mass)) for key, mass in entries]


def test_an_id_that_is_listed_twice_is_the_rest():
    text = columns([row(("#1", 0.5), ("#2", 0.2), ("#1", 0.2))], ["#1"], TOP)
    assert text.keys == [["#2"]]
    assert text.mass[0].tolist() == [pytest.approx(0.2), 0, 0, 0, 0]
    assert text.own.tolist() == [TOP]


@pytest.mark.parametrize("none", [-9999.0, -9000.0, -math.inf, math.nan])
def test_a_row_ends_where_a_logarithm_states_no_probability(none):
    law = [*row(("#1", 0.5), ("#2", 0.2)), ("#3", none), ("#4", none)]
    for key, own in (("#1", 0), ("#3", 4), ("#5", 4)):
        text = columns([law], [key], 4)
        assert text.keys == [["#1", "#2"]]
        assert text.own.tolist() == [own]
        assert not text.flaw


def test_probabilities_that_add_up_to_too_much_are_a_flaw():
    assert "add up to 1.2" in columns([row(("#1", 0.7), ("#2", 0.5))], ["#1"], 2).flaw
    assert "add up to" in columns([[("#1", 1e308), ("#2", 5.0)]], ["#1"], 2).flaw


def test_tokens_that_are_named_by_texts_are_a_flaw():
    assert columns([row(("a", 0.5))], ["a"], 2).flaw
    assert columns([row(("a", 0.5))], ["#1"], 2).flaw


def test_a_set_does_not_depend_on_the_token_that_it_is_bet_on():
    """Also where a key is listed twice, against the contract."""
    sets = []
    for own in (0, 1, 2):
        text = Columns([["a", "a"]] * 2, np.full((2, 2), 0.4), np.array([0, own]), ["a", "a"])
        at = text.positions(None)
        favoured = [bet.favoured(at, ())[0] for bet in ServerArm("one").alternatives]
        sets.append([outcomes[:2].tolist() for outcomes in favoured])
    assert sets[0] == sets[1] == sets[2]


def test_the_greedy_choice_of_a_text_that_several_tokens_print_is_not_judged():
    listed = row(("b", 0.3), ("a", 0.1))  # the likelier token called a is lost
    chosen = Answer("a", ["a"], [math.log(0.6)], [listed], "length")
    assert by_itself(chosen).kind is GreedyKind.ALONE
    wrong = Answer("a", ["a"], [math.log(0.1)], [listed], "length")
    assert by_itself(wrong).kind is GreedyKind.BUG
    rows = [listed, row(("b", 0.3), ("c", 0.2), ("d", 0.1))]
    unstated = Answer("ab", ["a", "b"], [0.0, 0.0], rows, "length")
    assert by_itself(unstated).kind is GreedyKind.ALONE
    base = Answer("b", ["b"], [math.log(0.6)], [listed], "length")
    also = Answer("b", ["b"], [math.log(0.3)], [row(("b", 0.3), ("c", 0.2), ("d", 0.1))], "length")
    found = compared_with([base, also], [wrong, also])
    assert found[0].kind is GreedyKind.BUG
    base = Answer("ab", ["a", "b"], [math.log(0.6), math.log(0.3)], [listed, listed], "length")
    other = Answer("aa", ["a", "a"], [math.log(0.6), math.log(0.3)], [listed, listed], "length")
    assert compared_with([base], [other])[0].kind is GreedyKind.UNKNOWN


def test_a_third_choice_is_planted_where_three_texts_are_listed():
    twice = row(("a", 0.5), ("a", 0.2), ("a", 0.1))
    rows = [twice, row(("a", 0.5), ("b", 0.2), ("b", 0.15), ("c", 0.1))]
    assert third_is_a_bug(Answer("aa", ["a", "a"], [], rows, "length"))
    sentinel = [*row(("a", 0.5), ("b", 0.2)), ("c", -9999.0)]
    assert third_is_a_bug(Answer("a", ["a"], [], [sentinel], "length"))


def test_an_emitted_token_beside_the_likeliest_is_no_column():
    rows = [[("#1", -0.5), ("#2", -1.5), ("#9", -7.0)], [("#1", -0.5), ("#2", -1.5)]]
    text = columns(rows, ["#9", "#2"], 2)
    assert text.own.tolist() == [2, 1]  # the rest, and the second column
    assert text.mass.shape == (2, 2)
