"""What a server states becomes columns of which bets are fair, also where texts are shared."""

import math

import numpy as np
import pytest

from spsbench.audit.statistical.audit import AuditVerdict
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.extensions.check.check import examine
from spsbench.extensions.check.columns import Columns, SharedTexts, columns
from spsbench.extensions.check.greedy import (
    against_baseline,
    against_itself,
    third_is_a_bug,
)
from spsbench.extensions.check.laws import Suspicion
from spsbench.extensions.check.plan import Plan
from spsbench.serving.engines import Answer
from spsbench.serving.http import Limits
from tests.serving.stub import Engine, Stub, serving, softmax, table

TOP = 5


def row(*entries):
    return [(key, math.log(mass)) for key, mass in entries]


def test_a_text_that_is_listed_twice_is_the_rest():
    text = columns([row(("a", 0.5), ("b", 0.2), ("a", 0.2))], ["a"], TOP, [math.log(0.5)])
    assert text.keys == [["b"]]
    assert text.mass[0].tolist() == [pytest.approx(0.2), 0, 0, 0, 0]
    assert text.own.tolist() == [TOP]


def test_an_emitted_token_with_the_text_of_a_listed_one_does_not_take_its_place():
    shared, law = SharedTexts(), row(("a", 0.6), ("b", 0.3), ("c", 0.08))
    text = columns([[*law, ("a", math.log(0.01))]], ["a"], 3, [math.log(0.01)], shared)
    assert text.keys == [["a", "b", "c"]]
    assert text.mass[0, 0] == pytest.approx(0.6)
    assert text.own.tolist() == [3]  # another token than the listed one
    assert "a" in shared
    assert columns([law], ["a"], 3, [math.log(0.6)], shared).keys == [["b"]]  # c may be appended


@pytest.mark.parametrize("none", [-9999.0, -9000.0, -math.inf, math.nan])
def test_a_row_ends_where_a_logarithm_states_no_probability(none):
    law = [*row(("a", 0.5), ("b", 0.2)), ("c", none), ("d", none)]
    for key, own in (("a", math.log(0.5)), ("c", none), ("e", -3.0)):
        text = columns([law], [key], 4, [own])
        assert text.keys == [["a", "b"]]
        assert text.own.tolist() == [0 if key == "a" else 4]
        assert not text.flaw
    by_id = columns([[("#1", -0.5), ("#2", none)]], ["#2"], 2)
    assert (by_id.keys, by_id.own.tolist()) == ([["#1"]], [2])


def test_probabilities_that_add_up_to_too_much_are_a_flaw():
    assert "add up to 1.2" in columns([row(("#1", 0.7), ("#2", 0.5))], ["#1"], 2).flaw
    assert "add up to" in columns([[("a", 1e308), ("b", 5.0)]], ["a"], 2, [5.0]).flaw


def ordered(entries):
    return sorted(entries, key=lambda entry: -entry[1])


def as_list(law, texts, emitted):
    """As chat lists the likeliest tokens."""
    return [(texts[i], math.log(law[i])) for i in np.argsort(-law)[:TOP]]


def as_object(law, texts, emitted):
    """As completions do, the emitted token last: of equal texts the last one stays."""
    best = np.argsort(-law)[:TOP].tolist()
    listed = [*best, *([emitted] if emitted not in best else [])]
    return ordered(list({texts[i]: math.log(law[i]) for i in listed}.items()))


def as_first_object(law, texts, emitted):
    """The same, but the first one stays."""
    return ordered(list(dict(reversed(as_list(law, texts, emitted))).items()))


@pytest.mark.parametrize("lists", [as_list, as_object, as_first_object])
@pytest.mark.parametrize("alike", [0, 2, 6, 8])
def test_a_column_is_hit_as_often_as_its_mass_says(lists, alike):
    """Over all tokens that may be emitted: the columns are the same, and their bets are fair."""
    texts = [f" w{0 if i < alike else i}" for i in range(12)]
    for seed in range(40):
        law = softmax(np.random.default_rng(seed).normal(size=12) * 1.5, 1.0)
        hits = np.zeros(TOP + 1)
        laws = []
        for emitted in range(12):
            shared = SharedTexts()
            shared.texts.update([texts[0]] if alike else [])
            stated = lists(law, texts, emitted)
            own = [math.log(law[emitted])]
            text = columns([stated], [texts[emitted]], TOP, own, shared)
            laws.append((text.keys, text.mass.tolist()))
            hits[text.own[0]] += law[emitted]
        assert all(law == laws[0] for law in laws)
        assert hits[:-1].tolist() == pytest.approx(laws[0][1][0])
        assert texts[0] not in laws[0][0][0] or not alike


def test_a_list_that_lacks_a_token_makes_suspects_until_the_text_is_known():
    shared = SharedTexts()
    short = row(("a", 0.3), ("b", 0.3), ("c", 0.2))
    columns([short], ["a"], 4, [math.log(0.3)], shared)
    assert all(text in shared for text in "abc")
    columns([row(("d", 0.5), ("e", 0.3))], ["d"], 2, [math.log(0.5)], shared)
    assert "d" not in shared
    columns([row(("b", 0.5), ("e", 0.3))], ["b"], 2, [math.log(0.1)], shared)
    assert [text in shared for text in "abc"] == [False, True, False]
    shared = SharedTexts()
    columns([row(("a", 0.6), ("b", 0.4))], ["a"], 4, [math.log(0.6)], shared)
    assert len(shared) == 0  # nothing lacks


def test_logarithms_beside_tokens_that_contradict_the_lists_are_a_flaw():
    texts = [chr(97 + i) for i in range(12)]
    law = row(*((text, 1 / 13) for text in texts))
    text = columns([law] * 12, texts, 12, [-1.0] * 12, SharedTexts())
    assert "another probability" in text.flaw
    assert not columns([law] * 12, texts, 12, [0.0] * 12, SharedTexts()).flaw  # 0 stands for none


def test_a_set_does_not_depend_on_the_token_that_it_is_bet_on():
    """Also where a key is listed twice, against the contract."""
    sets = []
    for own in (0, 1, 2):
        text = Columns([["a", "a"]] * 2, np.full((2, 2), 0.4), np.array([0, own]), ["a", "a"])
        sets.append([favoured[:2].tolist() for favoured in Suspicion().sets(text)])
    assert sets[0] == sets[1] == sets[2]


def test_the_greedy_choice_of_a_shared_text_is_told_by_its_own_probability():
    listed = row(("b", 0.3), ("a", 0.1))  # the likelier token called a is lost
    chosen = Answer("a", ["a"], [math.log(0.6)], [listed], "length")
    assert against_itself("one", chosen).kind is GreedyKind.IDENTICAL
    wrong = Answer("a", ["a"], [math.log(0.1)], [listed], "length")
    assert against_itself("one", wrong).kind is GreedyKind.BUG
    rows = [listed, row(("b", 0.3), ("c", 0.2), ("d", 0.1))]
    unstated = Answer("ab", ["a", "b"], [0.0, 0.0], rows, "length")
    assert against_itself("one", unstated).kind is GreedyKind.IDENTICAL
    base = Answer("b", ["b"], [math.log(0.6)], [listed], "length")
    also = Answer("b", ["b"], [math.log(0.3)], [row(("b", 0.3), ("c", 0.2), ("d", 0.1))], "length")
    found = against_baseline(["one", "two"], [base, also], [wrong, also])
    assert found[0].kind is GreedyKind.BUG
    base = Answer("ab", ["a", "b"], [math.log(0.6), math.log(0.3)], [listed, listed], "length")
    other = Answer("aa", ["a", "a"], [math.log(0.6), math.log(0.3)], [listed, listed], "length")
    assert against_baseline(["one"], [base], [other])[0].kind is GreedyKind.UNKNOWN


def test_a_third_choice_is_planted_where_three_texts_are_listed():
    twice = row(("a", 0.5), ("a", 0.2), ("a", 0.1))
    assert third_is_a_bug([twice, row(("a", 0.5), ("b", 0.2), ("b", 0.15), ("c", 0.1))], ["a", "a"])
    sentinel = [*row(("a", 0.5), ("b", 0.2)), ("c", -9999.0)]
    assert third_is_a_bug([sentinel], ["a"])


def alike(count):
    return lambda i: f" w{0 if i < count else i}"


def check_alike(count, chat, seed, **engine):
    target = table(seed)
    stub = Stub(
        Engine(target, 0.4 * target + 0.9 * table(seed + 50), **engine),
        "openai",
        printed=alike(count),
    )
    with serving(stub) as url:
        limits = Limits(timeout=60, retries=1, pause=0.01)
        more = {"parts": ("law", "greedy"), "bias": 0.2, "length": 32, "seed": 1000 * seed}
        return examine(Plan(url, chat=chat, limits=limits, **more))


CASES = [(count, chat, seed) for seed in range(1, 26) for count in (2, 6, 8) for chat in (0, 1)]
QUICK = [(2, 1, 1), (6, 0, 1), (8, 1, 1)]


@pytest.mark.parametrize(
    ("count", "chat", "seed"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_an_honest_server_with_shared_texts_holds(count, chat, seed):
    found = check_alike(count, bool(chat), seed)
    assert found.verdict is AuditVerdict.HELD, (found.law.line, found.greedy.line)
    assert any("may belong to several tokens" in line for line in found.remarks)


@pytest.mark.parametrize("chat", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_defect_is_found_beside_shared_texts(chat):
    found = check_alike(6, chat, 1, defect="verifies greedily")
    assert found.verdict is AuditVerdict.BIAS


def test_an_emitted_token_beside_the_likeliest_is_no_column():
    rows = [[("#1", -0.5), ("#2", -1.5), ("#9", -7.0)], [("#1", -0.5), ("#2", -1.5)]]
    text = columns(rows, ["#9", "#2"], 2)
    assert text.own.tolist() == [2, 1]  # the rest, and the second column
    assert text.mass.shape == (2, 2)
