"""Intervals by hand, and bounds of means against exact binomials and Dirichlet draws."""

import math

import numpy as np
import pytest

from spsbench.metrics.intervals import (
    CHANCE,
    FEWEST,
    SHARE,
    Jackknife,
    fewest,
    of_means,
    ratio_of,
    student_quantile,
    upper,
)


@pytest.mark.parametrize(("samples", "known"), [(1, False), (FEWEST - 1, False), (FEWEST, True)])
def test_few_samples_have_no_interval(samples, known):
    clusters = np.arange(20) % samples
    rows = np.stack([np.arange(1.0, 21), np.ones(20)], axis=1)
    estimate = Jackknife(rows, clusters).estimate(ratio_of(0, 1), 1)
    alone = of_means(np.arange(1.0, samples + 1))
    assert (estimate.mean, estimate.n) == (10.5, 20)
    assert (estimate.low is not None) == (alone.low is not None) == known


def test_a_sample_that_takes_no_part_does_not_count():
    rows = np.array([[1.0, 2]] * (FEWEST - 1) + [[0, 0]] * 3)
    rows[0] = 5, 2
    estimate = Jackknife(rows, np.arange(len(rows))).estimate(ratio_of(0, 1), 1)
    assert estimate[:4] == (11 / 14, None, None, FEWEST - 1)


def test_a_symmetric_figure_has_students_interval():
    values = np.arange(-10.0, 11)
    far = student_quantile(0.975, 19) * values.std(ddof=1) / np.sqrt(21)
    assert of_means(values)[:3] == pytest.approx((0.0, -far, far))


def test_a_share_stays_within_its_ends():
    rows = np.stack([np.full(10, 5.0), np.full(10, 5.0)], axis=1)
    rows[0, 0] = 2
    share = Jackknife(rows, np.arange(10)).estimate(ratio_of(0, 1), 1, SHARE)
    assert 0 < share.low < share.mean < share.high <= 1


@pytest.mark.parametrize(
    ("df", "quantile"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)]
)
def test_student_is_that_of_the_tables(df, quantile):
    assert student_quantile(0.975, df) == pytest.approx(quantile, abs=0.002)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_where_none_or_all_succeed_the_bound_is_clopper_and_pearsons(count):
    beyond = 1 - 0.025 ** (1 / count)  # (1 - p)^n = 2.5 %
    assert of_means(np.zeros(count), 1.0)[:4] == pytest.approx((0, 0, beyond, count))
    assert of_means(np.ones(count), 1.0)[:4] == pytest.approx((1, 1 - beyond, 1, count))
    assert of_means(np.zeros(count), 100.0)[:4] == pytest.approx((0, 0, 100 * beyond, count))


def test_a_rate_of_which_nothing_was_seen_is_not_certain():
    rows = np.stack([np.zeros(20), np.full(20, 7.0)], axis=1)
    found = Jackknife(rows, np.arange(20) % 10).estimate(ratio_of(0, 1), 1, CHANCE)
    assert found[:4] == pytest.approx((0, 0, 1 - 0.025 ** (1 / 10), 20))


def test_values_that_are_all_alike_have_no_interval():
    assert of_means(np.zeros(40))[:4] == (0.0, None, None, 40)
    assert of_means(np.array([0.25]))[:4] == (0.25, None, None, 1)
    assert of_means(np.array([])) is None
    assert of_means(np.ones(40), 100.0)[:4] == (1.0, None, None, 40)


def test_an_interval_ends_at_the_greatest_score():
    values = np.array([1.0] * 7 + [0.2])
    assert of_means(values, 1.0).high == of_means(values).high == 1.0
    assert of_means(values, 100.0).high > 1.1


def at_most(k, n, p):
    """The chance of k or fewer of n."""
    return sum(
        math.comb(n, i) * math.exp(i * math.log(p) + (n - i) * math.log1p(-p)) for i in range(k + 1)
    )


@pytest.mark.parametrize("miss", [0.05, 0.025])
@pytest.mark.parametrize("n", [8, 40, 164, 900])
def test_of_yes_and_no_it_is_the_exact_one(n, miss):
    for k in sorted({0, 1, 2, 5, 7, n // 3, n // 2, n - 2, n - 1}):
        bound = upper(np.repeat([1.0, 0.0], [k, n - k]), 1.0, miss)
        assert at_most(k, n, bound) == pytest.approx(miss, rel=0.03)
    assert upper(np.ones(n), 1.0, miss) == 1


@pytest.mark.parametrize("n", [10, 200])
def test_it_is_the_quantile_of_dirichlet_weights(n):
    draw = np.random.default_rng(n)
    values = draw.normal(0, 0.1, n)
    weights = draw.exponential(size=(20_000, n + 1))
    means = weights @ np.append(values, 1.0) / weights.sum(1)
    assert upper(values, 1.0, 0.05) == pytest.approx(np.quantile(means, 0.95), rel=0.02, abs=3e-4)


@pytest.mark.parametrize(("margin", "count"), [(0.012, 249), (0.003, 998), (0.5, 5), (1.0, 1)])
def test_the_fewest_values_that_can_show_a_margin(margin, count):
    assert fewest(margin, 0.05) == count
    assert upper(np.zeros(count), 1.0, 0.05) < margin or margin == 1
    assert upper(np.zeros(count - 1), 1.0, 0.05) >= margin if count > 1 else True
