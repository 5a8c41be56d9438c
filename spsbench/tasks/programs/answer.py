"""The program in an instruct model's answer, by a rule that has a version.

Rule `code-2`: of the answer the first code that defines the function and does not merely repeat
its head. Looked at are the fenced blocks in their order (one that never closes runs to the end),
then the stretches of bare code: from an `import`, `from`, `@`, `class` or `def` on, up to the first
line that is neither indented, nor begins so, nor sets a constant. Before it stands what the problem
has before its function: imports and helpers. Where nothing defines the function, a block that is
indented and returns continues the prompt.
"""

import re
from collections.abc import Iterator

from spsbench.tasks.humaneval import Problem

RULE = "code-2"
NOTHING = "no program in the answer"
_FENCE = re.compile(
    r"^[ \t]*(?:[-*+]|\d+[.)])?[ \t]*```+[^`\n]*\n(.*?)(?:^[ \t]*```+|```+[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_IMPORTED = r"\w[\w.]*( as \w+)?"
_BEGINS = re.compile(
    rf"(import {_IMPORTED}(, ?{_IMPORTED})*\s*(#.*)?$"
    r"|from \w+(\.\w+)* import |@\w|class \w|(async )?def \w)"
)
_CONSTANT = re.compile(r"[A-Z_][A-Z_0-9]* = ")
# What follows a name that is defined by a docstring, `pass` or `...` alone: the question, repeated.
# Not by `ast`: what a model wrote may be deeper than a parser bears.
_HEAD = re.compile(
    r"[^\n]*:[ \t]*\n(?:\s*(\"\"\"|''').*?\1)?\s*(?:#[^\n]*\n\s*)*"
    r"(?:pass|\.\.\.)?\s*(?:\Z|^(?=\S))",
    re.MULTILINE | re.DOTALL,
)
_RETURNS = re.compile(r"^[ \t]+(return|yield)\b", re.MULTILINE)


def program(problem: Problem, answer: str) -> str:
    """The whole program; where the answer has none, one that fails and says so."""
    code = found(problem.entry_point, answer)
    if code is not None:
        return problem.judged(f"{before(problem)}\n{code}")
    body = continued(answer)
    return f"raise SystemError({NOTHING!r})\n" if body is None else problem.program(body)


def found(name: str, answer: str) -> str | None:
    """The code that defines the function `name`; None where there is none."""
    defines = re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.MULTILINE)
    for code in _candidates(answer):
        if any(_HEAD.match(code, each.end()) is None for each in defines.finditer(code)):
            return code
    return None


def continued(answer: str) -> str | None:
    """The first block that is the body of a function; None where there is none."""
    for block in _FENCE.findall(answer):
        whole = all(line[0] in " \t#" for line in block.split("\n") if line.strip())
        defines = any(_BEGINS.match(line) for line in _dedented(block).split("\n"))
        if whole and not defines and _RETURNS.search(block):
            return str(block)
    return None


def before(problem: Problem) -> str:
    """What the problem's prompt has before its function."""
    at = problem.prompt.find(f"def {problem.entry_point}")
    return problem.prompt[: max(at, 0)]


def _candidates(answer: str) -> Iterator[str]:
    for block in _FENCE.findall(answer):
        yield _dedented(block)
    lines = _FENCE.sub("```\n", answer).split("\n")
    start = 0
    while start < len(lines):
        end = start + 1
        if _BEGINS.match(lines[start]):
            while end < len(lines) and _goes_on(lines[end]):
                end += 1
            yield "\n".join(lines[start:end]) + "\n"
        start = end


def _goes_on(line: str) -> bool:
    begins = _BEGINS.match(line) or _CONSTANT.match(line)
    return not line.strip() or line[0] in " \t)#" or begins is not None


def _dedented(block: str) -> str:
    """A block in a list is indented as a whole."""
    first = next((line for line in block.split("\n") if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(margin) for line in block.split("\n"))
