"""The size that an audit may claim: near the rule of thumb, and really seen."""

from dataclasses import replace

import numpy as np
import pytest

from spsbench.audit.statistical.betting import (
    REPEATS,
    Evidence,
    claimable,
    inject,
    no_evidence,
    tilt_increase,
    tilt_of,
)
from tests.variants import first


def honest(n, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    mass = rng.beta(0.5, 2, n) * scale
    every = np.stack([mass, rng.beta(5, 1, n), np.full(n, 0.005), np.full(n, 0.05)], axis=1)
    drawn = rng.random((REPEATS, n, 4)) < every
    favoured = drawn.copy()
    favoured[:, :, 0] = True
    hit = rng.random((n, 4)) < every
    zeros = np.zeros(n, np.int64)
    return Evidence(
        hit, every, 0.3 * (1 - mass), zeros, zeros, drawn, favoured, np.ones((n, 4, 2), bool)
    )


@pytest.mark.parametrize("n", first(1, (2_000, 8_000)))
def test_the_claim_follows_the_rule_and_is_kept(n):
    evidence = honest(n)
    claim = claimable(evidence)
    assert claim is not None
    fixed = 5.62 * (evidence.spread.mean() / n) ** 0.5  # (3.29 + 2.33)^2 v / bias^2
    assert fixed < claim < 1.5 * fixed  # what it costs to be valid at any stop
    assert inject(evidence, claim).passed
    assert tilt_increase(evidence, tilt_of(evidence, claim)).mean() == pytest.approx(
        claim, rel=1e-6
    )


def test_a_bias_much_smaller_than_the_claim_is_not_always_seen():
    evidence = honest(4_000)
    claim = claimable(evidence)
    assert claim is not None
    assert not inject(evidence, 0.4 * claim).passed


def test_a_claim_needs_tokens_that_could_be_hit():
    assert claimable(no_evidence()) is None
    assert claimable(honest(5)) is None
    assert claimable(honest(1_000, scale=0.0)) is None


def test_a_band_makes_the_claim_larger_by_about_itself():
    evidence = honest(6_000)
    plain, banded = claimable(evidence), claimable(evidence, band=np.full(4, 0.01))
    assert plain is not None
    assert banded is not None
    assert plain + 0.005 < banded < plain + 0.03


def test_an_audit_that_cannot_see_fails_its_control():
    evidence = honest(4_000)
    blind = replace(evidence, favoured=evidence.drawn)  # what is injected changes nothing
    claim = claimable(evidence)
    assert claim is not None
    assert not inject(blind, claim).passed
