"""The log of verdicts: each durable as it comes, under settings that are never mixed.

The same log as that of records. Its first entry says how the programs were held and what they were
allowed; the others are one a program, keyed by task and by the hash of the completion.
"""

import hashlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MismatchError
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.verdict import Outcome, Verdict
from spsbench.store.log import Log, iterate
from spsbench.store.manifest import differences

NAME = "verdicts.jsonl"  # in the folder of a run


class Key(NamedTuple):
    """A program: what was asked, and the SHA-256 of what was answered."""

    task: str
    completion: str

    @classmethod
    def of(cls, task: str, completion: str) -> "Key":
        """The key of a completion; half surrogate pairs are as good as any text."""
        text = completion.encode("utf-8", "surrogatepass")
        return cls(task, hashlib.sha256(text).hexdigest())


class Judged(NamedTuple):
    """What became of a program."""

    verdict: Verdict
    detail: str


class Verdicts:
    """A log of verdicts that this process alone may add to. Use it as a context manager."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open or create the log.

        Raises:
            MismatchError: its verdicts were made under other settings.
            InUseError, DataError, WriteError: as `store.log.Log`.
        """
        self.known: dict[Key, Judged] = {}
        self._path, self._settings = path, settings
        self._log = Log(path, self._see)
        if self._log.count == 0:
            self._log.append({"settings": settings})

    def __enter__(self) -> "Verdicts":
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.close()

    def add(self, key: Key, outcome: Outcome) -> None:
        """Make a verdict durable before returning.

        Raises:
            WriteError: it could not be written; what was written before is kept.
        """
        judged = Judged(outcome.verdict, outcome.detail)
        seconds = round(outcome.seconds, 4)
        self._log.append({**key._asdict(), **judged._asdict(), "seconds": seconds})
        self.known[key] = judged

    def _see(self, values: dict[str, Any]) -> None:
        if "settings" not in values:
            key, judged = _entry(values, self._path)
            self.known[key] = judged
        elif values["settings"] != self._settings:
            lines = (f"\n  {line}" for line in differences(self._settings, values["settings"]))
            raise MismatchError(
                f"verdicts under other settings ({self._path}): expected those of the first. "
                f"Score with the same, or move the file away. Differing:{''.join(lines)}"
            )


def settings_of(level: Level, limits: Limits) -> dict[str, Any]:
    """How programs are held, and what they may use: all that can change a verdict."""
    return {
        "sandbox": level.name,
        "flags": level.flags(),
        "limits": asdict(limits),
        "python": sys.version,
    }


def read_settings(folder: Path) -> dict[str, Any] | None:
    """How the programs of a run were held; None when none was judged."""
    path = folder / NAME
    if not path.exists():
        return None
    first = next(iterate(path), {})
    settings: dict[str, Any] | None = first.get("settings")
    return settings


def _entry(values: dict[str, Any], path: Path) -> tuple[Key, Judged]:
    try:
        judged = Judged(Verdict(values["verdict"]), values["detail"])
        return Key(values["task"], values["completion"]), judged
    except (KeyError, ValueError) as error:
        raise DataError(
            f"foreign verdict ({path}: {error}): expected what this version writes. "
            "Move the file away and score again"
        ) from error
