"""The acceptance rate that pays for a draft, against what a search over a fine grid finds."""

import pytest

from spsbench.planning.forecast.break_even import alpha_for, needed_alpha
from tests.planning.forecast.made import costs


def tau(alpha, k):
    """Tokens that a round of `k` emits, added up."""
    return sum(alpha**i for i in range(k + 1))


@pytest.mark.parametrize("k", [1, 4, 16])
def test_rate_of_a_length_is_the_inverse(k):
    for alpha in (0.0, 0.1, 0.5, 0.99):
        assert alpha_for(tau(alpha, k), k) == pytest.approx(alpha, abs=1e-9)
    assert alpha_for(k + 1.01, k) is None
    assert alpha_for(0.5, k) == 0


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_least_rate_over_all_k(gain):
    made = costs()
    found = needed_alpha(made, "model small", 100, gain)
    pays = [
        (alpha / 100, k)
        for alpha in range(10, 101)
        for k in (1, 2, 3, 4, 5, 6)
        if made.speed_up("model small", k, tau(alpha / 100, k), 100).value >= gain
    ]
    assert 0.1 < min(pays)[0] == pytest.approx(found.alpha + 0.005, abs=0.006)
    assert found.k in {k for alpha, k in pays if alpha == min(pays)[0]}


def test_what_never_pays():
    made = costs().scaled(draft=8.0)  # 16 seconds a token, beside 10 of a pass
    assert needed_alpha(made, "model small", 100) is None
