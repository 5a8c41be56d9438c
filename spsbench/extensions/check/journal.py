"""The kept answers of a check: a log that begins with the plan, whole after a kill.

A file whose name ends with `.gz` is written plainly beside it, and compressed when the check is
done. `Journal.closed_of` reads a file to compute the results anew: it answers, and asks nobody.
"""

import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from spsbench.errors import DataError, MismatchError, UsageError, WriteError, first_line
from spsbench.extensions.check.plan import Plan
from spsbench.hardware.files import open_file
from spsbench.store.atomic import check_replaceable, replace_file
from spsbench.store.log import HeadedLog, Log, decode

T = TypeVar("T")
SCHEMA = 2
BEGINNING = b'{"n":0,"sps_check":'
NO_LOGARITHM = -9999.0  # as engines write a probability of 0
COMPRESSED = ".gz"
MOST_BYTES = 1 << 28  # of a file that is read at once, unpacked
OPTIONS = "options"  # the key of the parameters that a plan's header leaves out
REFUSED = "refused/"  # before a mode whose requests were refused
NO_ANSWER = (
    OPTIONS,
    "connected/",
    "partial/",
    REFUSED,
)  # keys, or their beginnings, of no whole answer


class Journal:
    """The answers of a check: a log that begins with the plan, opened with the first answer."""

    def __init__(self, path: Path | None, plan: Plan, *, resume: bool = False) -> None:
        """Read the answers of `path` to resume a check, or check that a new file can be written.

        Raises:
            UsageError: there is a file already, and no `resume`.
            DataError: the file to resume is of another kind, or damaged.
            InUseError: another check writes the file.
            MismatchError: the file is of a check with other options.
            WriteError: the file cannot be written.
        """
        self._packed = path if path is not None and path.suffix == COMPRESSED else None
        path = path.with_suffix("") if path is not None and self._packed else path
        self.path, self._plan, self.closed = path, plan, False
        self.name = self._packed or path  # of the file at the end of the check
        self._values: dict[str, Any] = {}
        self._notes: dict[str, Any] = {}  # until the first answer
        self._log: Log | None = None
        if path is None:
            return
        if self._packed is not None:
            self._unpack(path, self._packed, resume=resume)
        if resume:
            self._check_kind(path)
            self._log = self._open(path, self._check_plan)
        elif os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0):
            raise self._exists()
        else:
            check_replaceable(path)

    @classmethod
    def closed_of(cls, path: Path, plan: Callable[[dict[str, Any]], Plan]) -> "Journal":
        """Read a whole file; `plan` makes the plan of what the file says of it.

        Raises:
            DataError: the file is of another kind, damaged, or too large.
        """
        journal = cls.__new__(cls)
        journal.name, journal.path, journal.closed, journal._log = path, path, True, None
        journal._packed, journal._notes, journal._values = None, {}, {}
        lines = lines_of(path)
        header = next(lines, {})
        for values in lines:
            journal._see(values)
        if header.get("sps_check") != SCHEMA or not isinstance(header.get("plan"), dict):
            raise journal._no_journal()
        options = journal._values.get(OPTIONS, {})
        journal._plan = plan({**header["plan"], **(options if isinstance(options, dict) else {})})
        return journal

    @property
    def plan(self) -> Plan:
        """Return the parameters of the check."""
        return self._plan

    def _unpack(self, path: Path, packed: Path, *, resume: bool) -> None:
        """Lay the plain file of a compressed one, to go on with it."""
        if not packed.is_file() or path.is_file():
            return
        if not resume:
            self.path = packed
            raise self._exists()
        content = unpacked(packed)
        if not content.startswith(BEGINNING):
            raise self._no_journal()
        replace_file(path, content)

    def pack(self) -> None:
        """Compress the file of a check that is done, where its name says so."""
        self.close()
        if self._packed is not None and self.path is not None and self.path.is_file():
            compress(self.path, self._packed)

    def _check_kind(self, path: Path) -> None:
        """Check that a file begins as a journal does, before the log mends its end."""
        try:
            with open_file(path) as file:
                begins = file.read(len(BEGINNING))
        except OSError as error:
            raise self._no_journal() from error
        if not BEGINNING.startswith(begins):
            raise self._no_journal()

    def _open(self, path: Path, check: Callable[[dict[str, Any]], None]) -> Log:
        header = {"sps_check": SCHEMA, "plan": self._plan.to_json()}
        return HeadedLog(path, header, check, self._see)

    def _see(self, values: dict[str, Any]) -> None:
        if isinstance(key := values.get("key"), str) and "value" in values:
            self._values[key] = values["value"]
        else:
            raise DataError(
                f"no answer in a line of the kept answers ({self.path}): expected a file of "
                "`sps check`. Check `resume`"
            )

    def _check_plan(self, header: dict[str, Any]) -> None:
        options, kept = self._plan.to_json(), header.get("plan")
        if header.get("sps_check") != SCHEMA or not isinstance(kept, dict):
            raise self._no_journal()
        names = dict.fromkeys([*options, *kept])
        differing = [name for name in names if options.get(name) != kept.get(name)]
        if differing:
            line = f"kept answers of another check ({self.path}): expected the same options"
            sides = [f"{name}: {kept.get(name)} | {options.get(name)}" for name in differing]
            raise MismatchError.of(line, sides, " (kept | asked)")

    def _refuse_old(self, _: dict[str, Any]) -> None:
        """Refuse a file that another check has written since the start of this one."""
        raise self._exists()

    def _exists(self) -> UsageError:
        return UsageError(
            f"{self.path} is there already (`keep`): expected a new file. Continue with `resume` "
            f"{self.name}"
        )

    def _no_journal(self) -> DataError:
        return DataError(
            f"no kept answers ({self.path}): expected a file of `sps check`. Check `resume`"
        )

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return sum(not key.startswith(NO_ANSWER) for key in self._values)

    def read(self, key: str, convert: Callable[[Any], T]) -> T:
        """Return a kept value, converted.

        Raises:
            DataError: the value has not the form of its kind.
        """
        try:
            return convert(self._values[key])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"kept answer {key} of another version ({self.path}: {type(error).__name__} "
                f"{first_line(error)}): expected one of this version. Start anew"
            ) from error

    def keep(self, key: str, value: Any) -> None:
        """Append a value, durable on return; the first one creates the file."""
        if self.path is not None:
            if self._log is None:
                self._log = self._open(self.path, self._refuse_old)
            notes, self._notes = self._notes, {}
            for name, noted in (*notes.items(), (key, value)):
                self._log.append({"key": name, "value": finite(noted, logarithm)})
        self._values[key] = value

    def note(self, key: str, value: Any) -> None:
        """Keep a value that is no answer, in the file from the next answer on."""
        self._notes[key] = value

    def close(self) -> None:
        """Close the file, after what was noted of answers that broke off."""
        if self._log is None:
            return
        for name, noted in self._notes.items():
            with suppress(WriteError):
                self._log.append({"key": name, "value": finite(noted, logarithm)})
        self._notes = {}
        self._log.close()


def finite(value: Any, put: Callable[[float], float | None]) -> Any:
    """Return plain values, with another in place of each infinity and NaN, which JSON has not."""
    if isinstance(value, float) and not math.isfinite(value):
        return put(value)
    if isinstance(value, dict):
        return {key: finite(part, put) for key, part in value.items()}
    return [finite(part, put) for part in value] if isinstance(value, list | tuple) else value


def logarithm(value: float) -> float:
    """Return the logarithm that stands for an infinite one, or for none."""
    return -NO_LOGARITHM if value > 0 else NO_LOGARITHM


def compress(path: Path, packed: Path) -> None:
    """Replace a file by a compressed one, whose bytes depend on its content alone."""
    replace_file(packed, gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def unpacked(path: Path) -> bytes:
    """Return the content of a file, which may be compressed.

    Raises:
        DataError: it is too large, or damaged.
    """
    try:
        with open_file(path) as file:
            source: Any = gzip.GzipFile(fileobj=file) if path.suffix == COMPRESSED else file
            content: bytes = source.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"kept answers that cannot be read ({path}: {first_line(error)}): expected a whole "
            "file of `sps check`"
        ) from error
    if len(content) > MOST_BYTES:
        raise DataError(f"more than {MOST_BYTES >> 20} MiB ({path}): expected kept answers")
    return content


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the checked records of a file; one that was cut at its end is left out.

    Raises:
        DataError: damage before the end.
    """
    lines = unpacked(path).splitlines(keepends=True)
    for number, line in enumerate(lines):
        values = decode(line, number)
        if values is None:
            if number == len(lines) - 1 and not line.endswith(b"\n"):
                return
            raise DataError(
                f"damaged record ({path}, line {number + 1}): expected kept answers of `sps check`"
            )
        yield values
