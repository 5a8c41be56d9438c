"""Bets on a server's text, the columns that they name, and ties of greedy texts, in numbers."""

import math
import re

import numpy as np
import pytest

from spsbench.audit.statistical import betting
from spsbench.audit.statistical.comparison import GreedyKind
from spsbench.audit.statistical.finding import AuditVerdict, AuditWithBaseline, format_claim
from spsbench.extensions.check import greedy
from spsbench.extensions.check.bets import Band, ServerAudit, band_between
from spsbench.extensions.check.columns import END, Columns, TopLists
from spsbench.extensions.check.weights import LocalModel
from spsbench.serving.engines import Answer

A, B, REST = 0, 1, 2
LAW = (0.3, 0.1, 0.6)
TOKENS = "aabaaa"
SETS = (
    ({A}, {A}, {A}, {A}, {A}, {A}),  # the likeliest token
    (set(), set(), set(), set(), set(), {B}),  # what followed the newest two the last time
    (set(), {A}, {A}, {A, B}, {A, B}, {A, B}),  # what came too often so far
)


def text_of(tokens, law=LAW, **more):
    n = len(tokens)
    own = np.array(["ab".find(token) % 3 for token in tokens])
    return Columns([["a", "b"]] * n, np.array([law[:2]] * n), own, list(tokens), **more)


def e_values(tokens, sets, law=LAW, band=(0.0, 0.0)):
    """After each token: the mean over the suspects of the sums of their products."""
    paths = np.zeros((len(sets), len(tokens)))
    for suspect, favoured in enumerate(sets):
        for bet in betting.BETS:
            capital = bet.share
            for at, token in enumerate(tokens):
                draft = favoured[at]
                chosen = {betting.DRAFT: draft, betting.ARGMAX: {A}, betting.TAIL: {REST}}.get(
                    bet.direction, set()
                )
                stratum = bet.index is None and bet.length in (None, 0)  # the first 16 tokens
                wide = band[0] if bet.direction == betting.ARGMAX or suspect == 0 else band[1]
                wide = band[1] if bet.direction not in (betting.ARGMAX, betting.DRAFT) else wide
                if stratum:
                    pull = 1 - sum(law[i] for i in draft) if draft else 0.0
                    capital *= factor(bet, token, chosen, law, pull, wide)
                paths[suspect, at] += capital
    return paths.mean(0)


def factor(bet, token, chosen, law, pull, wide):
    """1 + lam (hit - mass), where the mass is the far end of the band."""
    hit = ("ab".find(token) % 3) in chosen
    mass = min(max(sum(law[i] for i in chosen) + bet.sign * wide, 0.0), 1.0)
    if bet.scaled:
        edge = bet.size * max(pull - wide, 0.0)
        loss = min(edge / max(1 - mass, 1e-9), betting.MAX_SHARE_LOST)
        return 1 + edge / max(mass, 1e-9) if hit else 1 - loss
    lost = mass if bet.sign > 0 else 1 - mass  # at worst, of a stake of 1
    lam = bet.sign * min(bet.size, betting.MAX_SHARE_LOST / max(lost, 1e-9))
    return 1 + lam * (hit - mass)


def test_the_suspects_bet_on_what_the_past_says():
    text = text_of(TOKENS)
    at = text.positions(None)
    made = [alternative.favoured(at, ())[0] for alternative in ServerAudit("one").alternatives]
    named = [[set(np.flatnonzero(row).tolist()) for row in favoured] for favoured in made]
    assert named == [list(sets) for sets in SETS]


@pytest.mark.parametrize("band", [(0.0, 0.0), (0.02, 0.07)])
def test_the_e_value_is_the_mean_of_the_suspects_products(band):
    arm = ServerAudit("one", Band(*band))
    arm.take_text(text_of(TOKENS))
    expected = e_values(TOKENS, SETS, band=band).max()
    assert expected > 1.2
    assert math.exp(arm.peak) == pytest.approx(expected, rel=1e-12)


def test_the_end_of_a_text_is_a_set_of_its_own():
    text = Columns([["a", END]] * 40, np.full((40, 2), 0.5), np.ones(40, np.int64), [END] * 40)
    arm = ServerAudit("one")
    arm.take_text(text)
    ends = {d.direction: (d.observed, d.expected) for d in arm.shares}
    assert ends[END] == (1.0, 0.5)


def test_the_claim_has_the_level_of_one_suspect():
    """Each suspect has a third of the capital."""
    rng = np.random.default_rng(0)
    tokens = [("a", "b", "c")[i] for i in rng.choice(3, 300, p=LAW)]
    arm = ServerAudit("one", level=0.03)
    arm.take_text(text_of(tokens))
    assert arm.claim() == betting.claimable(arm.evidence(), 0.01)
    planted = arm.plant(0.1)
    assert planted == betting.inject(arm.evidence(), 0.1, 0.01)
    assert planted != betting.inject(arm.evidence(), 0.1, 0.03)


def test_the_band_is_the_mean_difference_and_three_errors():
    def pair(shift):
        one = text_of("a", (0.5, 0.2, 0.3))
        return one, text_of("a", (0.5 + shift, 0.2 - 2 * shift, 0.3))

    band = band_between([pair(0.01), pair(0.03)])
    assert band.argmax == pytest.approx(0.02 + 3 * 0.01 / math.sqrt(2))
    assert band.other == pytest.approx(0.04 + 3 * 0.02 / math.sqrt(2))
    assert band.tokens == 2
    assert band_between([]) == Band()


def test_laws_without_any_chance_are_told_in_a_line():
    sure = Columns([[]] * 20, np.zeros((20, 2)), np.full(20, 2), ["a"] * 20)
    arm = ServerAudit("one")
    arm.take_text(sure)
    assert arm.shares == []
    finding = AuditWithBaseline(arm, None, 0.05, AuditVerdict.UNKNOWN).finding()
    assert finding.verdict is AuditVerdict.UNKNOWN


def test_tokens_too_few_for_a_bias_are_enough_for_a_larger_one_only():
    arm = ServerAudit("one")
    for seed in range(20):
        arm.take_text(text_of("".join(np.random.default_rng(seed).choice([*"abc"], 50, p=LAW))))
    claim = arm.claim()
    line = AuditWithBaseline(arm, None, 0.9999 * claim, AuditVerdict.UNKNOWN).finding().line
    too_small, enough = map(float, re.findall(r"0\.[0-9]+", line))
    assert too_small < claim <= enough
    assert [format_claim(x) for x in (0.0501, 0.05, np.float64(0.0496))] == [
        "0.051",
        "0.05",
        "0.05",
    ]


# Greedy texts.

ROUNDING = 0.02


def compared_with(bases, texts):
    return greedy.compare_served("a reference", bases, texts).compared


def by_itself(text):
    bases = [greedy.expect_by_itself(text)]
    (compared,) = greedy.compare_served("itself", bases, [text], tolerance=greedy.LEAST).compared
    return compared


def answer(tokens, rows, own):
    return Answer("".join(tokens), list(tokens), own, rows, "length")


def pairs(gap, third=False):
    """A baseline and a server that part at the second token, `gap` nats apart."""
    second = [("d", -1.0 - gap / 2)] if third else []
    rows = [[("a", -0.5), ("b", -2.0)], [("b", -1.0), *second, ("c", -1.0 - gap), ("e", -9.0)]]
    base = answer("ab", rows, [-0.5, -1.0])
    return base, answer("ac", rows, [-0.5 - ROUNDING, -1.0 - gap])


@pytest.mark.parametrize(
    ("gap", "third", "kind"),
    [
        (1.9 * ROUNDING, False, GreedyKind.TIE),
        (3 * ROUNDING, False, GreedyKind.BUG),
        (1.9 * ROUNDING, True, GreedyKind.BUG),  # neither of the two likeliest
    ],
)
def test_a_tie_is_within_twice_the_rounding_of_the_baseline(gap, third, kind):
    (compared,) = compared_with(*([side] for side in pairs(gap, third)))
    assert compared.kind is kind
    assert compared.gap == pytest.approx(gap)
    assert compared.tolerance == pytest.approx(2 * ROUNDING + greedy.LEAST)


def test_the_rounding_is_the_largest_that_the_texts_share():
    base, own = pairs(1.9 * ROUNDING)
    same = answer("ab", base.stated, [-0.5, -1.0])
    compared = compared_with([same, base], [same, own])
    assert [text.kind for text in compared] == [GreedyKind.IDENTICAL, GreedyKind.TIE]


def test_a_logarithm_that_states_no_probability_is_no_column_of_the_rounding():
    scored = LocalModel("w", list, list, list, list("abc"), frozenset())
    assert scored.restated([[("#0", -0.5), ("#1", -math.inf)]], 1).keys == [["#0"]]


def test_a_greedy_token_without_a_probability_is_looked_up_in_its_list():
    text = answer("a", [[("a", -0.5), ("b", -2.0)]], [-math.inf])
    assert by_itself(text).kind is GreedyKind.IDENTICAL


@pytest.mark.parametrize(("gap", "kind"), [(5e-4, GreedyKind.TIE), (3e-3, GreedyKind.BUG)])
def test_a_tie_is_within_the_printed_digits_where_there_is_no_rounding(gap, kind):
    text = answer("c", [pairs(gap)[1].stated[1]], [-1.0 - gap])
    assert by_itself(text).kind is kind
    base, own = pairs(gap)
    own.own[0] = base.own[0]
    (compared,) = compared_with([base], [own])
    assert compared.kind is kind


@pytest.mark.parametrize(("gap", "kind"), [(1.9, GreedyKind.TIE), (3, GreedyKind.BUG)])
def test_a_tie_is_within_twice_the_rounding_of_the_weights(gap, kind):
    logits = np.array([[2.0, 1.0, -1.0], [-1.0, 2.0, 2.0 - gap * ROUNDING]])
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))

    def score(prompt, tokens):
        return logits[: len(tokens)]

    scored = LocalModel("w", score, list, list, ["a", "b", "c"], frozenset())
    own = [float(logits[0, 0]) + ROUNDING, float(logits[1, 2])]
    text = Answer("ac", ["#0", "#2"], own, [], "length", ids=[0, 2])
    base, own = greedy.expect_by_weights(scored, [0], text)
    (compared,) = compared_with([base], [own])
    assert compared.kind is kind
    assert compared.tolerance == pytest.approx(2 * ROUNDING + greedy.LEAST)


# Columns of what a server states.


def row(*entries):
    return [(key, math.log(mass)) for key, mass in entries]


def columns(rows, tokens, top):
    """Columns of a text after one that has shown a token beside lists of `top`."""
    lists = TopLists(top)
    shown = [(f"#{i}", -1.0 - i) for i in range(top + 1)]
    lists.columns([shown[:-1], shown], ["#0", f"#{top}"])
    return lists.columns(rows, tokens)


def test_an_id_that_is_listed_twice_is_the_rest():
    text = columns([row(("#1", 0.5), ("#2", 0.2), ("#1", 0.2))], ["#1"], 1)
    assert text.keys == [["#2"]]
    assert text.mass[0].tolist() == [pytest.approx(0.2)]
    assert text.emitted.tolist() == [1]


@pytest.mark.parametrize("none", [-9999.0, -9000.0, -math.inf, math.nan])
def test_a_row_ends_where_a_logarithm_states_no_probability(none):
    law = [*row(("#1", 0.5), ("#2", 0.2)), ("#3", none), ("#4", none)]
    for key, own in (("#1", 0), ("#3", 2), ("#5", 2)):
        text = columns([law], [key], 4)
        assert text.keys == [["#1", "#2"]]
        assert text.emitted.tolist() == [own]
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
        favoured = [bet.favoured(at, ())[0] for bet in ServerAudit("one").alternatives]
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
    assert greedy.third_is_a_bug(Answer("aa", ["a", "a"], [], rows, "length"))
    sentinel = [*row(("a", 0.5), ("b", 0.2)), ("c", -9999.0)]
    assert greedy.third_is_a_bug(Answer("a", ["a"], [], [sentinel], "length"))


def test_an_emitted_token_beside_the_likeliest_is_no_column():
    rows = [[("#1", -0.5), ("#2", -1.5), ("#9", -7.0)], [("#1", -0.5), ("#2", -1.5)]]
    text = columns(rows, ["#9", "#2"], 2)
    assert text.emitted.tolist() == [2, 1]  # the rest, and the second column
    assert text.mass.shape == (2, 2)
