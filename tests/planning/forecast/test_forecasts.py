"""Predictions against arithmetic by hand, over a table of costs with round numbers."""

from dataclasses import FrozenInstanceError, replace
from functools import partial

import numpy as np
import pytest

from spsbench.loop.types import Round
from spsbench.methods.schedules.by_history import Constant
from spsbench.metrics.costs import PLAIN
from spsbench.metrics.intervals import Estimate
from spsbench.planning.forecast.forecasts import forecast_all
from spsbench.planning.forecast.predictions import (
    RoundTally,
    predict,
    predict_for_others,
    selection_factor,
)
from spsbench.planning.forecast.recommendation import BreakEven, Decision, Measured, recommend
from spsbench.planning.forecast.rounds import simulate_rounds
from spsbench.planning.report import candidate_row
from spsbench.reports.table import speedup_of_row as speedup_shown
from spsbench.settings.cell import Cell, constant
from spsbench.settings.grid import make_request
from spsbench.settings.method import Drafting, Method
from spsbench.spec import Spec
from spsbench.store.traces import DraftOf, Proposed
from tests.oracles.forecasts import (
    DRAFT,
    NGRAM,
    SMALL,
    L,
    candidate,
    drafts,
    flat,
    forecast,
    found,
    surface,
    texts,
)

CELL = Cell.from_request(make_request())


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_constant_alpha_gives_the_formula(k):
    """Leviathan et al. 2023, equation 1, but for the end of the text."""
    found = forecast(candidate(k), DRAFT, texts(0.8, 1, 400), flat())
    tau = (1 - 0.8 ** (k + 1)) / (1 - 0.8)
    assert found.tau.mean == pytest.approx(tau, rel=0.02)
    assert found.alpha.mean == pytest.approx(0.8)
    # a round: 2 k drafting, 10 + k scoring, 0.1 (k + 1) sampling, 0.2, 0.3, and 0.5 unexplained
    seconds = 2 * k + 10 + k + 0.1 * (k + 1) + 0.2 + 0.3 + 0.5
    plain = 10 + 0.1 + 0.2 + 0.3 + 0.5
    assert found.plain_ms == pytest.approx(1e3 * plain)
    assert found.ms.mean == pytest.approx(1e3 * seconds / tau, rel=0.02)
    assert found.speedup.mean == pytest.approx(tau * plain / seconds, rel=0.02)
    assert sum(found.shares.values()) == pytest.approx(1, abs=0.01)
    assert found.shares["draft"] == pytest.approx(2 * k / seconds, rel=0.01)
    assert found.work == pytest.approx((k * 0.2 + k + 1) / tau, rel=0.02)  # Theorem 3.11


@pytest.mark.parametrize(("stops", "drafted", "laws"), [(0, 0, 1), (1, 1, 2), (3, 3, 3)])
def test_a_draft_that_a_schedule_stops_costs_the_probs_that_were_computed(stops, drafted, laws):
    """One more than were drafted, K at most, where a round is 10 + 1.1 and more for each draft."""
    ((text, along),) = texts(0.8, 1, 100)
    along = replace(along, stops={"entropy": np.full(100, stops)})
    given, three = (
        Method(SMALL, "sps", Spec("entropy")),
        partial(simulate_rounds, Constant(3), Round),
    )
    (found,) = predict(
        [given], DRAFT, [(text, along)], flat(), simulate=lambda schedule, *of: three(*of)
    )
    seconds = 2 * laws + 10 + drafted + 0.1 * (drafted + 1) + 0.2 + 0.3 + 0.5
    assert found.drafted == pytest.approx(drafted, rel=0.03)
    assert found.ms.mean * found.tau.mean == pytest.approx(1e3 * seconds, rel=0.03)


def test_slots_of_a_head_are_kept_by_their_depth():
    ((text, along),) = texts(1.0, 1, 400)
    slots, draft = np.tile([0.8, 0.5], 400), replace(DRAFT, most=8)
    traced = [(text, replace(along, p=slots, overlap=slots, depth=2))]
    for k, tau, alpha in ((1, 1.8, 0.8), (2, 2.2, 1.2 / 1.8), (4, 2.2, 1.2 / 1.8)):
        found = forecast(candidate(k), draft, traced, flat())
        assert found.tau.mean == pytest.approx(tau, rel=0.02)
        assert found.alpha.mean == pytest.approx(alpha, rel=0.02)
        assert found.drafted == pytest.approx(min(k, 2), rel=0.02)
    assert [draft.replays(k) for k in (8, 9, None)] == [True, False, False]


def test_a_look_up_pays_for_what_it_finds():
    """Nothing found: a plain round, and the asking."""
    lookup = DraftOf(name=NGRAM, sampled=False, most=16)
    nothing = np.zeros(L, np.uint8)
    there = np.where(np.arange(L) % 2 == 0, 4, 0).astype(np.uint8)
    written = [text for text, _ in texts(0.5)]
    own = flat(arms={PLAIN: drafts(0.0), NGRAM: drafts(0.01)})
    given = Method(NGRAM, "match", constant(4))
    for proposed, hits, tau in ((nothing, nothing, 1.0), (there, nothing, 1.0)):
        along = [(text, Proposed(proposed=proposed, hits=hits)) for text in written]
        found = forecast(given, lookup, along, own)
        assert found.tau.mean == pytest.approx(tau)
        assert found.drafted == pytest.approx(float(proposed[:-1].mean()), abs=0.1)
        assert found.speedup.mean < 1
        assert found.work == pytest.approx(1 + found.drafted)  # what is looked up computes nothing


def each_once(*alphas):
    """Return a text of each acceptance rate."""
    pairs = [pair for alpha in alphas for pair in texts(alpha, 1)]
    return [(replace(t, key=("c", str(i), 0)), along) for i, (t, along) in enumerate(pairs)]


def test_intervals_have_both_reasons_to_doubt():
    """Texts that differ, and turns that differ."""
    alike = texts(0.8)
    unlike = each_once(*np.linspace(0.5, 0.95, 10))
    shaky = np.linspace(0.8, 1.2, 8)
    steady, noisy = flat(), flat(arms={PLAIN: drafts(0.0), SMALL: noisy_arm(shaky)})

    def width(traced, own):
        found = forecast(candidate(4), DRAFT, traced, own).speedup
        if found.low is None or found.high is None:
            return 0.0
        return found.high - found.low

    assert width(alike, steady) < 1e-9
    assert 0.05 < width(unlike, steady) < width(unlike, noisy)


def noisy_arm(slow):
    return replace(drafts(2.0), draft=surface(lambda n, _: 2.0 * n, (1, 4, 8), slow=slow))


def real(value, half=0.02):
    estimate = Estimate(value, value - half, value + half, 10)
    return Measured(estimate, estimate, estimate)


def told(of, measured):
    best = of.best.method
    return of.answer({best: real(measured)})


@pytest.mark.parametrize(
    ("value", "half", "verdict"),
    [
        (1.7, 0.02, Decision.SPECULATE),
        (0.9, 0.02, Decision.DO_NOT),
        (1.01, 0.02, Decision.NEITHER),
        (1.1, 0.3, Decision.UNDECIDED),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_was_measured_decides(value, half, verdict):
    own = found(0.9)
    assert own.best.speedup.mean > 1.2
    assert own.answer({own.best.method: real(value, half)}).verdict is verdict


@pytest.mark.parametrize(("speedup", "tau", "n"), [(1.72, 1.0, 4), (1.72, 1.7, 9), (1.5, 3.0, 1)])
def test_a_measurement_above_its_tau_or_of_one_prompt_is_no_reason_to_speculate(speedup, tau, n):
    own = found(0.9)
    first, second = (candidate(k) for k in (1, 4))
    doubtful = Measured(Estimate(speedup, None, None, n), Estimate(tau, None, None, n), real(1).ms)
    alone = own.answer({first: doubtful})
    assert (alone.verdict, alone.best) == (Decision.UNDECIDED, own.best.method)
    beside = own.answer({first: doubtful, second: real(1.4)})
    assert (beside.verdict, beside.best) == (Decision.SPECULATE, second)
    shown = candidate_row(CELL, own, own.all[0], doubtful)
    assert shown.speedup.undecided
    assert speedup_shown(shown) is None


def test_parts_of_a_round_that_are_no_shares_under_load_are_not_shown():
    own = found(0.9, flat(busy=True))
    shares = [f"{part}_percent" for part in ("draft", "target", "rest")]
    worst = own.all[1]
    worst.rounds.parts = worst.rounds.parts * np.array([1, 9, 1, 1, 1, -9])[:, None]
    assert [candidate_row(CELL, own, worst, None).terms[name] for name in shares] == [None] * 3
    shown = candidate_row(CELL, own, own.all[0], None).terms
    assert sum(shown[name].mean for name in shares) == pytest.approx(100)


def test_a_row_that_was_first_by_prediction_is_told_where_another_was_faster():
    of = found(0.9)
    first = of.best.method
    other = next(f.method for f in of.all if f.method != first)
    reply = of.answer({first: real(1.2), other: real(1.4)})
    assert reply.best == other
    assert f"{first}, first by prediction, measured 1.20x" in reply.numbers
    assert "first by prediction" not in of.answer({first: real(1.2)}).numbers


def test_a_prediction_alone_decides_nothing():
    for alpha, word in ((0.9, "It may pay"), (0.2, "It hardly pays")):
        answer = found(alpha).answer({})
        assert answer.verdict is Decision.UNDECIDED
        assert str(answer).startswith(word)
        assert "Not decided: the best of 6 candidates is predicted to be" in str(answer)
        assert "peculate" not in str(answer)


def test_a_measurement_without_an_interval_needs_the_prediction():
    own = found(0.9)

    def verdict(of, value, loaded=False):
        alone = Estimate(value, None, None, 3, loaded)
        measured = Measured(alone, alone, alone)
        return of.answer({of.best.method: measured}).verdict

    assert verdict(own, 1.5) is Decision.SPECULATE
    assert verdict(own, 1.5, loaded=True) is Decision.UNDECIDED
    assert verdict(own, 0.9) is Decision.UNDECIDED
    assert verdict(found(0.2), 0.9) is Decision.DO_NOT


def test_a_method_that_no_text_predicts_is_decided_by_its_measurement():
    def unpredicted(measured):
        return recommend(
            Method(Drafting.parse("tree d"), "match", constant(4)), None, measured, BreakEven(), 3
        )

    best = str(unpredicted(real(1.5, 0.05)))
    assert "Speculate with tree d, K = 4, match: 1.50x (1.45 to 1.55) measured" in best
    assert "Do not speculate" in str(unpredicted(real(0.9)))
    alone = Estimate(1.5, None, None, 3)
    few = unpredicted(Measured(alone, alone, alone))
    assert few.verdict is Decision.UNDECIDED
    assert "Not decided: tree d" in str(few)


LOOKUP = DraftOf(name=NGRAM, sampled=False, most=16)


def looked_up(own):
    """By rule: every fourth position has two tokens to propose, of which one is right."""
    there = np.where(np.arange(L) % 4 == 0, 2, 0).astype(np.uint8)
    along = [(t, Proposed(proposed=there, hits=there // 2)) for t, _ in texts(0.5)]
    every = [Method(NGRAM, "match", constant(k)) for k in (1, 4, 8)]
    return forecast_all(every, {NGRAM: (LOOKUP, along)}, own)


@pytest.mark.parametrize("fixed", [-6.0, -2.0, 0.5, 3.0])
def test_no_prediction_exceeds_its_ceiling_or_tau(fixed):
    """Also where rounds with a draft were measured as faster than rounds without one."""
    own = looked_up(flat(arms={PLAIN: drafts(0.0), NGRAM: drafts(0.01, fixed=fixed)}))
    (high,) = own.ceilings.values()
    for each in own.all:
        assert each.speedup.mean <= each.tau.mean
        assert each.speedup.mean <= high + 1e-9 <= 1.5


def test_costs_that_contradict_each_other_decide_nothing():
    own = flat(arms={PLAIN: drafts(0.0), NGRAM: drafts(0.01, fixed=-6.0)})
    (worst,) = own.contradictions()
    assert (worst.draft, worst.k) == (NGRAM, 1)
    assert worst.seconds < worst.plain == pytest.approx(11.1)
    told_by = looked_up(own)
    assert any(line.startswith("The costs contradict") for line in told_by.remarks())
    answer = told_by.answer({})
    assert answer.verdict is Decision.UNDECIDED
    assert "a round of ngram with K = 1 took" in answer.reason
    alone = Estimate(1.3, None, None, 3)
    best = told_by.best.method
    assert told_by.answer({best: Measured(alone, alone, alone)}).verdict is Decision.UNDECIDED
    assert told_by.answer({best: real(1.3)}).verdict is Decision.SPECULATE  # with an interval
    assert not flat(arms={PLAIN: drafts(0.0), NGRAM: drafts(0.01)}).contradictions()
    assert not own.scaled(draft=0.5).contradictions()  # nobody measured these


def test_it_says_what_is_lacking():
    """The numbers are the ones at which the same arithmetic gives 1."""
    own = found(0.2)
    answer = told(own, 0.8)
    assert answer.verdict is Decision.DO_NOT
    assert str(answer).startswith("The draft is too slow for how often it is right. Do not specul")
    needs = own.needs(own.best)
    assert needs.c == pytest.approx(0.2)
    assert f"alpha {needs.needed_alpha:.2f} at this cost" in str(answer)
    assert found(needs.needed_alpha + 0.03).best.speedup.mean > 1
    assert found(needs.needed_alpha - 0.03).best.speedup.mean < 1
    factor = needs.needed_c / needs.c
    assert found(0.2, flat().scaled(draft=factor * 0.98)).best.speedup.mean > 1
    assert found(0.2, flat().scaled(draft=factor * 1.02)).best.speedup.mean < 1


def test_a_short_trace_says_how_much_is_missing():
    few = found(0.8, count=3)
    assert any("needs 5 more, about 120 tokens" in line for line in few.remarks())


def test_each_draft_of_a_shape_is_told_the_alpha_from_which_it_pays():
    slow, fast = (Drafting.parse(f"model shape:64x{n} (random)") for n in (8, 2))
    arms = {PLAIN: drafts(0.0), slow: drafts(4.0), fast: drafts(1.0)}
    every = [Method(name, "sps", constant(k)) for name in (slow, fast) for k in (1, 4)]
    traced = {name: (replace(DRAFT, name=name), texts(0.05)) for name in (slow, fast)}
    own = forecast_all(every, traced, flat(arms=arms))
    for name in (slow, fast):
        best = next(f for f in own.by_method if f.method.drafting == name)
        (line,) = [line for line in own.remarks() if line.startswith(f"{best.method}: ")]
        assert f"alpha {own.needs(best).needed_alpha:.2f} at this cost" in line


def test_an_interval_adds_the_texts_that_follow_and_the_chance_along_them():
    """Of 9 texts 3 follow: three times their variance, and those of the mean and of acceptances."""
    found = predict_for_others(Estimate(2.0, 1.9, 2.2, 9), 9, 3, variance=4.0, rounds=50.0)
    by_chance = 1.96 * np.sqrt(4.0 * 3 / 9) / (50.0 * 3 / 9)
    assert np.log(2 / found.low) == pytest.approx(np.hypot(2 * np.log(2 / 1.9), by_chance), 1e-3)
    assert np.log(found.high / 2) == pytest.approx(np.hypot(2 * np.log(2.2 / 2), by_chance), 1e-3)
    unknown = Estimate(2.0, None, None, 5)
    assert predict_for_others(unknown, 5, 3, variance=4.0, rounds=50.0) == unknown


def test_the_best_k_is_predicted_for_prompts_that_did_not_choose_it():
    """Two texts that are each good at a K of their own: neither K is good at the other text."""
    seconds = np.array([[[10.0, 2], [10, 10]], [[10, 10], [10, 2]]])
    # either K gains 20 / 12 on both; each text counted with the K that the other chooses: 20 / 20
    assert selection_factor(seconds) == pytest.approx((12 / 20) ** 0.5)
    assert selection_factor(seconds[:1]) == selection_factor(seconds[[0, 0]]) == 1


def test_every_method_is_corrected_for_the_choice_of_its_k():
    ks, traced = [candidate(k) for k in (1, 4, 8)], each_once(0.05, 0.98)
    alone = predict(ks, DRAFT, traced, flat())
    factor = selection_factor(np.stack([each.by_prompt() for each in alone]))
    assert 0.5 < factor < 1
    together = forecast_all(ks, {SMALL: (DRAFT, traced)}, flat()).all
    for one, other in zip(alone, together, strict=True):
        times = max(factor, 1 / one.tau.mean)  # no round emits less than a token
        assert other.speedup.mean == pytest.approx(times * one.speedup.mean)
        assert other.tau.mean == pytest.approx(times * one.tau.mean)
        assert other.ms.mean == pytest.approx(one.ms.mean / times)
    assert together[0].tau.mean == pytest.approx(1)


def test_a_prediction_stays_as_it_is():
    rounds = RoundTally(method=candidate(4), costs=flat())
    rounds.add_plain(L, 100, (0, 0))
    prediction = rounds.predict()
    with pytest.raises(RuntimeError):
        rounds.add_plain(L, 100, (1, 0))
    with pytest.raises(FrozenInstanceError):
        prediction.factor = 0.5
    assert replace(prediction, operations=0.5).tau == prediction.tau
