"""The program in an instruct model's answer, by the rule `code-4`."""

from textwrap import indent

import pytest

from spsbench.tasks.humaneval import HumanEval
from spsbench.tasks.program_texts import NOTHING, body_block, defining_code, program

FUNCTION = "def f(x):\n    return x + 1\n"
WITH_FENCE = '''def f(x):
    """Add one.

    ```
    f(1)
    ```
    """
    return x + 1
'''
DRAFT = "```python\ndef f(x):\n    return x\n```\n"


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
        f"```python\n{FUNCTION}\n{FUNCTION}```\n\nThis uses `x + 1`.",
        f"````python\n{FUNCTION}````",
        "1. ```python\n   def f(x):\n       return x + 1\n   ```",
        f"Write ```f``` so, between ``` marks:\n```python\n{FUNCTION}```",
        f"{FUNCTION}\nFor example:\n```python\nf(1)\n```",  # the fenced block only uses it
        f"def g(x):\n    return x\n\nAnd then:\n\n{FUNCTION}",
        "import re\nN = 1\ndef f(x):\n    return x + N\n",
        f"import this into your code:\n{FUNCTION}",
        f'```python\ndef f(x):\n    """Add one."""\n```\nDone:\n```python\n{FUNCTION}```',
        f"```python\ndef f(x):\n    # Your code here\n    pass\n```\n```python\n{FUNCTION}```",
        f"```python\n{WITH_FENCE}```\nIt adds one.",
        f"```python\n{WITH_FENCE.replace('```', '```python', 1)}```",
        f"```python\n{WITH_FENCE.replace('    ```', 'Such as: ```', 1)}```",
        f"````python\n{WITH_FENCE.replace('    ```', '```')}````",
        f"~~~python\n{WITH_FENCE.replace('    ```', '```')}~~~\nIt adds one.",
        "* So:\n    ```python\n" + indent(WITH_FENCE, "    ") + "    ```\n",
        "-\tSo:\n\n\t```python\n" + indent(WITH_FENCE, "\t") + "\t```\n",
        "12. ```python\n" + indent(FUNCTION, "    ") + "    ```\n",
        f"```python\n{FUNCTION}   ```\nIt adds one.",
        f"```python\n{FUNCTION}```".replace("\n", "\r\n"),
        f"<think>\n{DRAFT}It is wrong.\n</think>\n\n```python\n{FUNCTION}```",
        f"{DRAFT}It is wrong.\n</think>\n\n```python\n{FUNCTION}```",
        f"<think>\n</think>\n{FUNCTION}",
        f"<thinking>\n{DRAFT}</thinking>\n{FUNCTION}",
        f"[THINK]{DRAFT}[/THINK]\n{FUNCTION}",
        f"<seed:think>{DRAFT}</seed:think>\n{FUNCTION}",
    ],
)
def test_the_first_code_that_defines_the_function(answer):
    code = defining_code("f", answer)
    assert code is not None
    space = {}
    exec(code, space)
    assert space["f"](1) == 2


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot.",
        "```python\nx = 1\n```",
        "def g(x):\n    return x",
        '```python\ndef has_close_elements(numbers):\n    """The question again."""\n```',
        "```python\n    def g(x):\n        return x\n```",
        f"<think>\nPerhaps:\n{DRAFT}",
        f"[THINK]Perhaps:\n{DRAFT}",
        f"{DRAFT}</think>\nI cannot.",
    ],
)
def test_no_program(answer):
    assert defining_code("f", answer) is None
    assert body_block(answer) is None
    problem = HumanEval().problems["HumanEval/0"]
    assert NOTHING in program(problem, answer)


def test_only_the_body():
    problem = HumanEval().problems["HumanEval/2"]  # truncate_number
    body = f"Here is the rest:\n```python\n{problem.canonical_solution}```\nIt is short."
    exec(program(problem, body), {})
    assert body_block("```python\nreturn number\n```") is None  # it would stand outside


def test_the_canonical_solutions_pass_as_answers():
    for name in ("HumanEval/0", "HumanEval/1", "HumanEval/38", "HumanEval/50"):  # with helpers too
        problem = HumanEval().problems[name]
        start = problem.prompt.index(f"def {problem.entry_point}")
        function = problem.prompt[start:] + problem.canonical_solution
        exec(program(problem, f"```python\n{function}\n```"), {})
