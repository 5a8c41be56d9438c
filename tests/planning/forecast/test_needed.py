"""The acceptance rate that pays for a draft, against what a search over a fine grid finds."""

import pytest

from spsbench.metrics.rates import alpha_for


def tau(alpha, k):
    """Tokens that a round of `k` emits, added up."""
    return sum(alpha**i for i in range(k + 1))


@pytest.mark.parametrize("k", [1, 4, 16])
def test_rate_of_a_length_is_the_inverse(k):
    for alpha in (0.0, 0.1, 0.5, 0.99):
        assert alpha_for(tau(alpha, k), k) == pytest.approx(alpha, abs=1e-9)
    assert alpha_for(k + 1.01, k) is None
    assert alpha_for(0.5, k) == 0
