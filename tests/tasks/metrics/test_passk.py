"""pass@k against exact fractions and simulated programs."""

import math
import random
from fractions import Fraction
from itertools import combinations

import pytest

from spsbench.tasks.passk import Passes, estimate, over_problems, over_samples


@pytest.mark.parametrize("n", [1, 2, 5, 30, 100, 200])
def test_against_exact_binomials(n):
    for c in range(n + 1):
        for k in {1, 2, 10, n - 1, n} & set(range(1, n + 1)):
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert estimate(n, c, k) == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


def test_it_is_the_share_of_draws_with_a_pass():
    verdicts = [True, True, False, False, False, False]
    for k in range(1, 7):
        draws = list(combinations(verdicts, k))
        assert estimate(6, 2, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_large_counts_neither_overflow_nor_vanish():
    assert estimate(1_000_000, 1, 100) == pytest.approx(1e-4)
    assert estimate(1_000_000, 500_000, 100) == pytest.approx(1.0)
    assert estimate(100, 0, 100) == 0.0
    assert estimate(100, 1, 100) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=f"pass@{k}"):
        estimate(n, c, k)


def test_no_problems_have_no_interval():
    for interval in (over_problems, over_samples):
        with pytest.raises(ValueError, match="at least one problem"):
            interval([], 1)


def simulated(draw, rates, n):
    return [Passes(n, sum(draw.random() < rate for _ in range(n))) for rate in rates]


def test_the_intervals_answer_their_own_questions():
    draw = random.Random(0)
    rates = [draw.random() ** 2 for _ in range(164)]
    tallies = simulated(draw, rates, 100)
    problems, samples = over_problems(tallies, 1), over_samples(tallies, 1)
    assert problems.mean == pytest.approx(samples.mean)
    assert samples.mean == pytest.approx(sum(c for _, c in tallies) / 16400)
    assert problems.n == samples.n == 164
    # Standard errors in closed form: of 164 means, and of 100 draws in each of 164 strata.
    shares = [c / n for n, c in tallies]
    spread = math.sqrt(sum((s - samples.mean) ** 2 for s in shares) / 164 / 164)
    strata = math.sqrt(sum(s * (1 - s) / 100 for s in shares)) / 164
    assert problems.high - problems.low == pytest.approx(2 * 1.96 * spread, rel=0.08)
    assert samples.high - samples.low == pytest.approx(2 * 1.96 * strata, rel=0.08)
    assert over_samples(tallies, 1) == samples


def test_where_none_or_all_pass_there_is_a_bound_and_never_zero_to_zero():
    none, every = [Passes(10, 0)] * 20, [Passes(10, 10)] * 20
    assert over_samples(none, 1)[1:3] == pytest.approx((0, 1 - 0.025 ** (1 / 200)))
    assert over_problems(none, 1)[1:3] == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert over_samples(none, 10)[1:3] == pytest.approx((0, 1 - 0.025 ** (10 / 200)))
    assert over_samples(every, 1)[1:3] == pytest.approx((0.025 ** (1 / 200), 1))
    assert over_problems(every, 1)[1:3] == pytest.approx((0.025 ** (1 / 20), 1))


@pytest.mark.parametrize(
    ("tallies", "k"),
    [
        ([Passes(1, i % 2) for i in range(20)], 1),  # one program shows nothing of another
        ([Passes(10, 5)] * 20, 10),
        ([Passes(2, 1)] * 3, 1),  # too few
    ],
)
def test_where_nothing_shows_how_programs_vary_there_is_no_interval(tallies, k):
    assert over_samples(tallies, k)[1:3] == (None, None)


@pytest.mark.parametrize(("n", "rate"), [(2, 0.02), (2, 0.3), (10, 0.02)])
def test_few_programs_a_problem_cover_too(n, rate):
    draw = random.Random(2)
    found = [over_samples(simulated(draw, [rate] * 80, n), 1) for _ in range(300)]
    known = [e for e in found if e.low is not None and e.high is not None]
    assert len(known) > 270
    assert sum(e.low <= rate <= e.high for e in known) >= 0.92 * len(known)


@pytest.mark.slow
def test_the_interval_over_samples_covers():
    """95 of 100 repetitions should hold the truth; 16 misses have a chance below 1e-4."""
    draw = random.Random(1)
    rates = [draw.random() ** 2 for _ in range(40)]
    for k in (1, 10):
        truth = sum(1 - (1 - rate) ** k for rate in rates) / len(rates)
        found = [over_samples(simulated(draw, rates, 100), k) for _ in range(100)]
        assert sum(not e.low <= truth <= e.high for e in found) < 16
