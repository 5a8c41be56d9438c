"""Schedules that look at the past alone: heuristic, ema, goodput."""

import random

import numpy as np
import pytest
import torch

from spsbench.errors import UsageError
from spsbench.loop.types import Round
from spsbench.methods.schedules.by_distribution import Entropy
from spsbench.methods.schedules.by_history import (
    Constant,
    Ema,
    Goodput,
    Heuristic,
    outcome,
    running_sums,
)
from spsbench.methods.schedules.by_payoff import Payoff
from spsbench.methods.schedules.by_utility import Utility
from spsbench.metrics.costs import PLAIN
from spsbench.metrics.costs_file import dumps
from spsbench.plugins import make
from spsbench.spec import Spec
from tests.oracles.forecasts import NGRAM, SMALL, costs, drafts, in_batches, surface

LEARNING = [Constant, Heuristic, Ema, Goodput, Entropy, Payoff, Utility]


def turn(drafted, accepted, tested=None):
    tested = min(accepted + 1, drafted) if tested is None else tested
    return Round(drafted, tested, accepted, [0] * (accepted + 1), None, 0.1, None)


def past(seed, rounds=40):
    dice = random.Random(seed)
    drafts = [dice.randint(0, 6) for _ in range(rounds)]
    return [turn(n, dice.randint(0, n)) for n in drafts]


@pytest.mark.parametrize("kind", LEARNING)
def test_k_is_a_function_of_the_past_in_any_order_of_asking(kind):
    growing = []
    schedule, expected = kind(), []
    for each in past(1):
        expected.append((schedule.k(growing), said(schedule)))
        growing.append(each)
    for n in random.Random(0).sample(range(40), 40):
        assert (schedule.k(growing[:n]), said(schedule)) == expected[n]
    other = past(2)
    first = kind().k(other)
    assert schedule.k(other) == first
    growing[:] = other  # the same list, another past
    assert schedule.k(growing) == first


def said(schedule):
    laws = torch.linspace(0.3, 0.99, 40)
    return [bool(schedule.go_on(torch.stack([x, 1 - x]))) for x in laws]


def test_heuristic_is_transformers_rule_within_its_ends():
    schedule = Heuristic(start=3, most=6)
    history = []
    ks = []
    for full in (True, True, True, False, False, False, False, False, False, True):
        k = schedule.k(history)
        ks.append(k)
        history.append(turn(k, k if full else 0))
    assert ks == [3, 5, 6, 6, 5, 4, 3, 2, 1, 1]
    assert schedule.k(history) == 3
    assert schedule.k([*history, turn(0, 0)]) == 3  # nothing was drafted: nothing was learned


def test_outcomes_are_counted_whatever_the_rule_tests():
    assert outcome(turn(4, 2)) == (2, 3)
    assert outcome(turn(4, 4)) == (4, 4)
    assert outcome(turn(4, 2, tested=-1)) == (2, 3)
    assert outcome(turn(0, 0)) == (0, 0)


def test_the_running_acceptance_finds_the_rate_and_forgets_it():
    dice = random.Random(3)
    history = []
    for _ in range(600):
        kept = next((i for i in range(8) if dice.random() >= 0.6), 8)
        history.append(turn(8, kept))
    sums = running_sums(0.98)

    def estimate(past):
        return sums(past).alpha(0.9, 4.0)

    assert estimate(history) == pytest.approx(0.6, abs=0.06)
    assert estimate([*history, *[turn(0, 0)] * 400]) == pytest.approx(0.9, abs=0.01)
    assert estimate([]) == pytest.approx(0.9)


def test_ema_reaches_as_deep_as_tokens_are_likely():
    assert Ema(least=0.3, alpha=0.7).k([]) == 3  # 0.7 ** 3 = 0.343, 0.7 ** 4 = 0.24
    assert Ema(most=6).k([turn(4, 4)] * 60) == 6
    assert Ema().k([turn(4, 0)] * 60) == 1


def test_goodput_is_the_best_of_all_k():
    for alpha in (0.05, 0.3, 0.6, 0.8, 0.95):
        for draft, row, fixed in ((0.05, 0.0, 0.0), (0.3, 0.05, 0.2), (0.9, 0.1, 0.0)):
            rates = [
                sum(alpha**i for i in range(k + 1)) / (1 + (fixed if k else 0) + k * (draft + row))
                for k in range(21)
            ]
            schedule = Goodput(draft=draft, row=row, fixed=fixed, alpha=alpha)
            assert schedule.k([]) == rates.index(max(rates))


def test_goodput_takes_the_costs_of_a_file(tmp_path):
    table = costs()
    file = tmp_path / "costs.json"
    file.write_text(dumps(table))
    schedule = Goodput(costs=str(file), context=100, most=6)
    arms = [PLAIN, *[SMALL] * 6]
    seconds = [np.median(table.round(name, k, k, 100).sum(0)) for k, name in enumerate(arms)]
    rates = [sum(0.7**i for i in range(k + 1)) / seconds[k] for k in range(7)]
    assert schedule.k([]) == rates.index(max(rates))
    two = costs(arms={PLAIN: drafts(0.0), SMALL: drafts(1.0), NGRAM: drafts(2.0)})
    file.write_text(dumps(two))
    assert Goodput(costs=str(file), arm="ngram").k([]) <= Goodput(
        costs=str(file), arm="model small"
    ).k([])
    with pytest.raises(ValueError):
        Goodput(costs=str(file))
    with pytest.raises(UsageError):
        make("schedules", Spec("goodput", (("costs", str(file)), ("arm", "c"))))


def test_goodput_drafts_less_in_a_batch_that_fills_the_machine(tmp_path):
    file = tmp_path / "costs.json"
    table = costs(batches=in_batches(), weights=1)
    file.write_text(dumps(table))
    ks = [Goodput(costs=str(file), batch=size, most=8).k([]) for size in (2, 8, 16, 32)]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > 0 == ks[-1]
    batches = table.batches
    seconds = [batches.round(PLAIN, 0, 0, 8, 256)]
    seconds += [batches.round(SMALL, k, k, 8, 256) for k in range(1, 9)]
    rates = [sum(0.7**i for i in range(k + 1)) / seconds[k][0] for k in range(9)]
    assert ks[1] == rates.index(max(rates))
    with pytest.raises(ValueError):
        Goodput(costs=str(file), batch=64)
    with pytest.raises(ValueError):
        Goodput(batch=2)


def test_goodput_follows_the_context_of_its_text(tmp_path):
    """A pass over more rows grows with the tokens that each row reads."""
    rows = surface(lambda n, context: 10.0 + n * (context / 100) ** 2, contexts=(100, 2000))
    file = tmp_path / "costs.json"
    file.write_text(dumps(costs(passes=rows)))
    schedule = Goodput(costs=str(file), context=100, alpha=0.9)
    written = [turn(0, 0)] * 960  # tokens, and nothing that changes the estimate
    assert Goodput(costs=str(file), context=1060, alpha=0.9).k([]) == 0
    assert schedule.k([]) > 0 == schedule.k(written)
