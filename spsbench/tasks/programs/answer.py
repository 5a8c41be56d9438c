"""The program in an instruct model's answer, by a rule that has a version.

Rule `code-1`: of the answer the first fenced code block that defines the function (one that never
closes runs to the end); without any block, the lines from the first `import`, `from`, `@`, `class`
or `def` on, up to the first that is neither indented nor begins so. Before it stands what the
problem has before its function: imports and helpers.
"""

import re
from collections.abc import Iterator

from spsbench.tasks.humaneval import Problem

RULE = "code-1"
NOTHING = "no program in the answer"
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_BEGINS = re.compile(r"(import |from \w+(\.\w+)* import |@\w|class \w|(async )?def \w)")


def program(problem: Problem, answer: str) -> str:
    """The whole program; where the answer has none, one that fails and says so."""
    code = found(problem.entry_point, answer)
    if code is None:
        return f"raise SystemError({NOTHING!r})\n"
    return problem.judged(f"{before(problem)}\n{code}")


def found(name: str, answer: str) -> str | None:
    """The code that defines the function `name`; None where there is none."""
    defines = re.compile(rf"^(async )?def {re.escape(name)}\b", re.MULTILINE)
    return next((code for code in _candidates(answer) if defines.search(code)), None)


def before(problem: Problem) -> str:
    """What the problem's prompt has before its function."""
    at = problem.prompt.find(f"def {problem.entry_point}")
    return problem.prompt[: max(at, 0)]


def _candidates(answer: str) -> Iterator[str]:
    blocks = [_dedented(block) for block in _FENCE.findall(answer)]
    if blocks:
        yield from blocks
        return
    lines = answer.split("\n")
    for start, line in enumerate(lines):
        if _BEGINS.match(line):
            end = start + 1
            while end < len(lines) and _goes_on(lines[end]):
                end += 1
            yield "\n".join(lines[start:end]) + "\n"
            return


def _goes_on(line: str) -> bool:
    return not line.strip() or line[0] in " \t)#" or _BEGINS.match(line) is not None


def _dedented(block: str) -> str:
    """A block in a list is indented as a whole."""
    first = next((line for line in block.split("\n") if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(margin) for line in block.split("\n"))
