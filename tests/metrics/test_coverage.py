"""Intervals hold the truth as often as they say, from 8 samples on, also of skewed figures.

Simulated runs, one row of sums a sample; the truth is the ratio of the rows' expectations.
"""

import numpy as np
import pytest

from spsbench.metrics.intervals import POSITIVE, SHARE, Jackknife, ends, of_means

SIZES = (8, 10, 20, 40)
TRIALS = 2_000
PROMISED = 0.93


def tokens(draw, shape):
    return draw.integers(20, 128, shape).astype(float)


def lognormal(sd):
    """Milliseconds and tokens, the time of a token lognormal."""

    def law(draw, shape):
        emitted = tokens(draw, shape)
        return np.stack([emitted * np.exp(draw.normal(0, sd, shape)), emitted], -1)

    return law


def arms(sd, shared):
    """Seconds and tokens of two arms, which find the same prompts slow, the second half as much."""

    def law(draw, shape):
        prompt = np.exp(draw.normal(0, shared, shape))
        slow, fast = tokens(draw, shape), tokens(draw, shape)
        times = slow * prompt, fast * prompt * np.exp(draw.normal(0, sd, shape)) / 2
        return np.stack([times[0], slow, times[1], fast], -1)

    return law


def overlap(a, b):
    def law(draw, shape):
        tested = draw.integers(20, 100, shape)
        return np.stack([tested * draw.beta(a, b, shape), tested], -1)

    return law


def per_round(draw, shape):
    """Tokens and rounds: at most K + 1 = 5 a round, most prompts near it."""
    rounds = draw.integers(10, 40, shape)
    drafts = draw.binomial(4 * rounds, draw.beta(6, 1, shape))
    return np.stack([drafts + rounds, rounds], -1).astype(float)


def ratio(sums):
    return sums[..., 0] / sums[..., 1]


def gain(sums):
    return ratio(sums[..., :2]) / ratio(sums[..., 2:])


LAWS = {
    "ms per token": (lognormal(0.3), POSITIVE),
    "ms per token, skewed": (lognormal(0.8), POSITIVE),
    "speed-up": (arms(0.3, 0.5), POSITIVE),
    "tau": (per_round, POSITIVE),
    "alpha": (overlap(7, 3), SHARE),
    "alpha near 1": (overlap(19, 1), SHARE),
    "share of time": (overlap(1, 4), SHARE),
}


def simulated(name, size, trials=TRIALS):
    law, _ = LAWS[name]
    draw = np.random.default_rng(size)
    truth = figure(name)(law(draw, (2_000, 100)).sum((0, 1)))
    return law(draw, (trials, size)), float(truth)


def figure(name):
    return gain if name.startswith("speed-up") else ratio


@pytest.mark.parametrize("name", LAWS)
def test_coverage(name):
    found = {}
    for size in SIZES:
        rows, truth = simulated(name, size)
        total, scale = rows.sum(1), LAWS[name][1]
        left_out = figure(name)(total[:, None] - rows)
        low, high = map(scale.back, ends(scale.to(figure(name)(total)), scale.to(left_out)))
        found[size] = float(np.mean((low <= truth) & (truth <= high)))
    assert min(found.values()) >= PROMISED, found
    assert max(found.values()) <= 0.985, found


@pytest.mark.parametrize("name", ["ms per token", "speed-up", "alpha"])
def test_what_was_simulated_is_what_a_table_has(name):
    (rows,), _ = simulated(name, 8, trials=1)
    estimate = Jackknife(rows, np.arange(8)).estimate(figure(name), 1, LAWS[name][1])
    scale, total = LAWS[name][1], rows.sum(0)
    left_out = figure(name)(total - rows)
    expected = map(scale.back, ends(scale.to(figure(name)(total)), scale.to(left_out)))
    assert estimate[1:3] == pytest.approx(tuple(map(float, expected)))


@pytest.mark.parametrize("rate", [0.03, 0.3])
def test_coverage_of_means_of_yes_and_no(rate):
    """pass@1 of 164 problems; where all are alike there is no interval."""
    draw = np.random.default_rng(0)
    found = [of_means((draw.random(164) < rate).astype(float)) for _ in range(1_000)]
    known = [e for e in found if e is not None and e.low is not None and e.high is not None]
    held = sum(e.low <= rate <= e.high for e in known)
    assert len(known) > 950
    assert held >= PROMISED * len(known)
    assert all(0 <= e.low < e.high <= 1 for e in known)
