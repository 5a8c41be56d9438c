"""The task `humaneval_local` of the recipes: its problems, its stops, and its scores."""

import importlib.util
import re
from pathlib import Path

import pytest

from spsbench.extensions.sandbox.levels import SandboxError
from spsbench.tasks.humaneval import HumanEval

FOLDER = Path(__file__).parents[3] / "recipes" / "lm-eval"


@pytest.fixture(scope="module")
def task():
    spec = importlib.util.spec_from_file_location("humaneval_local", FOLDER / "humaneval_local.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_problems_are_those_of_our_own_task(task):
    (test,) = task.problems(version=1).values()
    ours = HumanEval().problems
    assert test["task_id"] == list(ours)
    assert test["prompt"] == [problem.prompt for problem in ours.values()]


def test_its_stops_are_those_of_our_own_task():
    until = re.search(r"until: \[(.*)\]", (FOLDER / "humaneval_local.yaml").read_text())[1]
    stops = tuple(text.encode().decode("unicode_escape") for text in re.findall('"(.*?)"', until))
    assert stops == HumanEval.stop


def test_a_right_completion_passes_in_the_sandbox_and_a_wrong_one_does_not(task):
    doc = task.problems()["test"][0]
    try:
        assert task.score(doc, [doc["canonical_solution"]]) == {"pass@1": 1.0}
    except SandboxError as error:
        pytest.skip(str(error))
    assert task.score(doc, ["    return None\n"]) == {"pass@1": 0.0}
