"""The schedule that leaves a model out while its drafts do not pay, by recorded costs alone."""

import random
from itertools import pairwise
from statistics import mean

import pytest

from spsbench.loop.types import Round
from spsbench.methods.schedules.by_history import costs_of_rows
from spsbench.methods.schedules.by_payoff import Payoff

AVX2, AVX512 = {"draft": 0.06, "row": 0.18, "fixed": 0.06}, {"draft": 0.06, "row": 0.02}
WORST = 0.03  # of the time of plain sampling that a text may lose


def turn(drafted, accepted, *, by_rule=False):
    tested = min(accepted + 1, drafted)
    emitted = [0] * (accepted + 1)
    return Round(drafted, tested, accepted, emitted, None, 0.1, None, by_rule=by_rule)


def speedup(costs, alpha, *, tokens=96, seed=0, found=0.0, rule_alpha=0.0):
    """Tokens over cost in plain passes, where so many rounds find a draft by the rule."""
    dice, schedule, history = random.Random(seed), Payoff(**costs), []
    spent = made = 0
    while made < tokens:
        left = tokens - made - 1
        k, rule_k = (min(n, left) for n in (schedule.k(history), schedule.rule_k(history)))
        by_rule = rule_k > 0 and dice.random() < found
        n, chance = (rule_k, rule_alpha) if by_rule else (k, alpha)
        kept = next((i for i in range(n) if dice.random() >= chance), n)
        history.append(turn(n, kept, by_rule=by_rule and n > 0))
        made += kept + 1
        model = 0 if by_rule or n == 0 else costs.get("fixed", 0) + n * costs["draft"]
        spent += 1 + n * costs["row"] + model
    return made / spent


@pytest.mark.parametrize("costs", [AVX2, AVX512, {"draft": 0.15, "row": 0.25, "fixed": 0.1}])
@pytest.mark.parametrize("alpha", [0.05, 0.15, 0.25, 0.35, 0.5])
def test_no_text_loses_more_than_a_little(costs, alpha):
    gains = sorted(speedup(costs, alpha, seed=seed) for seed in range(40))
    assert gains[2] > 1 - WORST


def test_what_pays_is_used_as_far_as_it_pays():
    for costs, least in ((AVX2, 1.3), (AVX512, 1.9)):
        assert mean(speedup(costs, 0.7, seed=seed) for seed in range(20)) > least
    ruled = [speedup(AVX2, 0.1, found=0.4, rule_alpha=0.9, seed=seed) for seed in range(20)]
    assert mean(ruled) > 1.3, "the rule's drafts are used while the model is left out"


def test_a_model_that_does_not_pay_is_tried_rarely_and_with_one_token():
    schedule, history, asked = Payoff(**AVX2, hold=8), [], []
    for _ in range(300):
        k = schedule.k(history)
        asked.append(k)
        history.append(turn(k, 0))
    first = asked.index(0)
    trials = [at for at in range(first, 300) if asked[at]]
    assert {asked[at] for at in trials} == {1}
    gaps = [b - a - 1 for a, b in pairwise(trials)]
    assert gaps == [16, 32, 64, 64, 64]
    assert trials[0] - first == 8


def test_a_model_whose_trial_pays_is_asked_again():
    schedule, history = Payoff(**AVX512, hold=4), []
    while schedule.k(history):
        history.append(turn(schedule.k(history), 0))
    while not schedule.k(history):
        history.append(turn(0, 0))
    for _ in range(40):
        k = schedule.k(history)
        history.append(turn(k, k))
    assert schedule.k(history) > 3


def test_rows_that_cost_little_up_to_some_count_are_filled():
    """Four further rows cost 0.1 in all, the fifth 0.6: no rate of acceptance but 1 pays for it."""
    schedule, history = Payoff(draft=0.01, row="0.02-0.05-0.07-0.1-0.7"), []
    for _ in range(60):
        k = schedule.k(history)
        history.append(turn(k, k if len(history) % 8 else 0))
        history.append(turn(schedule.rule_k(history), schedule.rule_k(history), by_rule=True))
    assert schedule.k(history) == schedule.rule_k(history) == 4


def test_a_model_is_asked_by_its_own_acceptance_beside_a_rule_that_is_always_right():
    schedule = Payoff(draft=0.03, row="0.05-0.1-0.15-0.2-0.35-0.4", fixed=0.11)
    history = []
    for n in range(80):
        history.append(turn(schedule.rule_k(history), schedule.rule_k(history), by_rule=True))
        k = schedule.k(history)
        history.append(turn(k, int(n % 4 == 0 and k > 0)))
    assert schedule.k(history) <= 1
    assert schedule.rule_k(history) >= 4


def test_a_draft_by_the_rule_costs_its_rows_and_no_draft():
    """At a rate of one half, rows of 0.05 pay up to the third, whatever a model's drafts cost."""
    schedule, history = Payoff(draft=2.0, row=0.05, fixed=0.5), []
    for _ in range(100):
        history += [turn(4, 1, by_rule=True), turn(1, 0)]
    assert schedule.rule_k(history) == 3
    assert schedule.k(history) <= 1


def test_costs_of_rows_are_a_number_each_or_a_list_that_goes_on():
    assert costs_of_rows(0.25, 3) == [0.0, 0.25, 0.5, 0.75]
    assert costs_of_rows("0.1-0.125-0.375", 5) == [0.0, 0.1, 0.125, 0.375, 0.625, 0.875]
    assert costs_of_rows("0.1-0.2-0.3", 1) == [0.0, 0.1]
    assert costs_of_rows(1e-05, 1) == [0.0, 1e-05]
