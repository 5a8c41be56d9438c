"""Bounds of means against exact binomials and Dirichlet draws."""

import math

import numpy as np
import pytest

from spsbench.metrics.intervals import fewest, upper


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
