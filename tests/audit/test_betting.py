"""The e-process: fair under the null, its level kept, and every defect of the table seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from spsbench.audit.statistical.betting import (
    BETS,
    DIRECTIONS,
    MAIN,
    EProcess,
    alarm,
    bet_log_factors,
    log_factors,
    total,
)
from tests.audit import planted
from tests.audit.planted import capital_after, positions, tokens

# Defect, tokens after which a fixed test of the direction catches it with probability 0.99.
TABLE = {
    "lenience 0.9": (planted.lenient(0.9), 5_700),
    "lenience 0.5": (planted.lenient(0.5), 250),
    "residual = q": (planted.residual_is_target, 1_000),
    "accept always": (planted.accepts_always, 145),
    "draft top-p 0.95, ratio of raw p": (planted.raw_nucleus, 22_300),
    "top-k 50, ratio of raw p": (planted.raw_top_k, 4_300),
    "top-p missing on the target": (planted.no_top_p, 5_700),
    "temperature 0.8 instead of 1": (planted.too_cold, 815),
    "greedy draft, full p": (planted.greedy_draft, 113),
}


def test_the_process_is_divided_among_the_bets():
    assert sum(bet.share for bet in BETS) == pytest.approx(1)
    assert sum(BETS[i].share for i in MAIN) == pytest.approx(0.5)
    assert EProcess().take(nothing()).shape == (0,)


def nothing():
    return tokens(positions(planted.none), 0, np.random.default_rng(0))


@pytest.mark.parametrize("bet", BETS, ids=lambda bet: f"{bet.name} {bet.size}")
def test_every_bet_is_fair_at_any_mass(bet):
    mass = np.concatenate([[0.0, 1.0], np.linspace(1e-12, 1, 999), np.logspace(-12, 0, 200)])
    pull = (1 - mass) * np.random.default_rng(0).random(len(mass))
    hit, miss = log_factors(bet, mass, pull)
    expected = mass * np.exp(hit) + (1 - mass) * np.exp(miss)
    assert (expected <= 1 + 1e-9).all()
    assert np.isfinite(miss).all()
    usual = (mass > 1e-6) & (mass < 0.9)
    assert expected[usual] == pytest.approx(1)


@pytest.mark.parametrize("bias", [-0.01, 0.0, 0.01])
def test_with_a_band_no_bias_within_it_pays(bias):
    mass = np.linspace(0.05, 0.95, 50)
    for bet in BETS:
        hit, miss = log_factors(bet, mass, 0.2 * (1 - mass), band=0.01)
        expected = (mass + bias) * np.exp(hit) + (1 - mass - bias) * np.exp(miss)
        assert (expected <= 1 + 1e-9).all()


def false_alarms(audits, n, seed, off=0.0):
    """Of fresh audits whose tokens follow the target's distribution, after every token."""
    rng, at, alarms = np.random.default_rng(seed), positions(planted.none), 0
    pairs = positions(planted.accepts_always)  # its sets are those of an honest draft
    at = replace(at, mass=pairs.mass - off, pull=pairs.pull)
    start = np.log([bet.share for bet in BETS])
    for _ in range(audits // 50):
        steps = bet_log_factors(tokens(at, 50 * n, rng)).reshape(50, n, len(BETS))
        peaks = total(start + steps.cumsum(1)).max(1)
        alarms += int((peaks >= alarm()).sum())
    return alarms


def most(audits, level=1e-3):
    """The count that fresh audits of this level exceed once in a thousand times."""
    mass, count = math.exp(audits * math.log1p(-level)), 0
    chance = mass
    while mass < 0.999:
        chance *= (audits - count) / (count + 1) * level / (1 - level)
        count, mass = count + 1, mass + chance
    return count


def test_false_alarms_are_as_rare_as_stated():
    assert most(2_000) == 8
    assert false_alarms(500, 300, seed=1) <= most(500)


@pytest.mark.slow
def test_false_alarms_of_ten_thousand_longer_audits():
    assert false_alarms(10_000, 1_500, seed=3) <= most(10_000)


@pytest.mark.parametrize("name", TABLE)
def test_each_defect_is_caught_within_twice_its_tokens(name):
    defect, n = TABLE[name]
    caught = (capital_after(defect, 2 * n, 400) >= alarm()).mean()
    assert caught >= 0.99


def test_without_a_defect_nothing_is_caught():
    for n in (1_000, 100_000, 10_000_000):
        assert (capital_after(planted.none, n, 400) >= alarm()).mean() < 0.01


def test_the_leading_bet_names_the_defect():
    process = EProcess()
    process.take(tokens(positions(planted.too_cold), 2_000, np.random.default_rng(0)))
    assert process.leading_bet.split()[0] in DIRECTIONS[1:]
    process = EProcess()
    process.take(tokens(positions(planted.lenient(0.5)), 2_000, np.random.default_rng(0)))
    assert process.leading_bet == "draft too often"
    assert process.peak > alarm()
