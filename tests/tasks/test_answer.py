"""The program in an instruct model's answer, by the rule `code-1`."""

import pytest

from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.programs.answer import NOTHING, found, program

FUNCTION = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n```python\n{FUNCTION}```\nIt adds one.",
        f"```\n{FUNCTION}```",
        f"```python\n{FUNCTION}",  # cut off by the budget
        f"```sh\npip install x\n```\nand\n```python\n{FUNCTION}```",
        "1. So:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n",
        f"Sure.\n{FUNCTION}\nThis function adds one.",
        f"```python\n{FUNCTION}```\n```python\ndef f(x):\n    return 0\n```",
    ],
)
def test_the_first_code_that_defines_the_function(answer: str) -> None:
    code = found("f", answer)
    assert code is not None
    space: dict = {}
    exec(code, space)
    assert space["f"](1) == 2


@pytest.mark.parametrize(
    "answer", ["", "I cannot.", "```python\nx = 1\n```", "def g(x):\n    pass"]
)
def test_no_program(answer: str) -> None:
    assert found("f", answer) is None
    problem = HumanEval().problems["HumanEval/0"]
    assert NOTHING in program(problem, answer)


def test_the_canonical_solutions_pass_as_answers() -> None:
    for name in ("HumanEval/0", "HumanEval/1", "HumanEval/38", "HumanEval/50"):  # with helpers too
        problem = HumanEval().problems[name]
        start = problem.prompt.index(f"def {problem.entry_point}")
        function = problem.prompt[start:] + problem.canonical_solution
        exec(program(problem, f"```python\n{function}\n```"), {})
