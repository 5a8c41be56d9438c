"""The kept answers of a check: a log that begins with the plan, whole after a kill.

A file whose name ends with `.gz` is written plainly beside it, and compressed when the check is
done. A file that is resumed is read whole, and written when an answer comes that it has not.
"""

import gzip
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from spsbench.errors import DataError, MismatchError, UsageError, first_line
from spsbench.extensions.check.options import CheckOptions, of_file
from spsbench.foreign import read_foreign
from spsbench.store.atomic import check_replaceable, replace_file
from spsbench.store.log import HeadedLog, Log, decode

T = TypeVar("T")
SCHEMA = 2
BEGINNING = b'{"n":0,"sps_check":'
NO_LOGARITHM = -9999.0  # as engines write a probability of 0
COMPRESSED = ".gz"
MOST_BYTES = 1 << 28  # of a file, unpacked
OPTIONS = "options"  # the key of the parameters that a plan's header leaves out
REFUSED = "refused/"  # before a mode whose requests were refused
NO_ANSWER = (OPTIONS, "connected/", "partial/", REFUSED)  # keys, or their beginnings


class Journal:
    """The answers of a check: a log that begins with the plan, opened with the first answer.

    Args:
        path: of the file; None = nothing is kept.
        resume: there is a file to go on with.
        asks: answers that the file has not are asked for.

    Raises:
        UsageError: there is a file already, and no `resume`.
        DataError: the file to resume is of another kind, or damaged.
        WriteError: the file cannot be written.
    """

    def __init__(self, path: Path | None, *, resume: bool = False, asks: bool = True) -> None:
        is_packed = path is not None and path.suffix == COMPRESSED
        self.name, self.asks, self._resumes = path, asks, resume  # of the file at the end
        self.path = path.with_suffix("") if path is not None and is_packed else path
        self._values: dict[str, Any] = {}
        self._notes: dict[str, Any] = {}  # until the first answer
        self._log: Log | None = None
        self._header: dict[str, Any] = {}
        if path is None or self.path is None:
            return
        if resume:
            # what is left of a compressed file by a kill is a plain one
            self._content = read_foreign(
                self.path if self.path.is_file() else path, "a file of `sps check`", MOST_BYTES
            )
            self._read(self._content, path)
        elif any(map(_is_used, (path, self.path))):
            raise self._exists()
        else:
            check_replaceable(self.path)

    def _read(self, content: bytes, path: Path) -> None:
        if not (content.startswith(BEGINNING) or BEGINNING.startswith(content)):
            raise self._no_journal()
        header, *records = [*lines_of(content, path)] or [{}]
        if header and not (
            header.get("sps_check") == SCHEMA and isinstance(header.get("plan"), dict)
        ):
            raise self._no_journal()
        self._header = header.get("plan", {})
        for values in records:
            if not isinstance(key := values.get("key"), str) or "value" not in values:
                raise DataError(
                    f"no answer in a line of the kept answers ({path}): expected a file of "
                    "`sps check`. Check `resume`"
                )
            self._values[key] = values["value"]

    def options(self, given: dict[str, Any]) -> CheckOptions:
        """Return the options of the file, with the `given` ones in place of its own.

        Raises:
            DataError: the file is not of this version. UsageError: as `options.of_file`.
        """
        kept = self._values.get(OPTIONS)
        if not self._header or self.name is None:
            raise self._no_journal()
        values = {**self._header, **(kept if isinstance(kept, dict) else {})}
        return of_file(self.name, values, given)

    def begin(self, plan: CheckOptions) -> None:
        """Check that the file is of a check with these options.

        Raises:
            MismatchError: it is of another one.
        """
        header, kept = plan.header(), self._header
        names = dict.fromkeys([*header, *kept]) if kept and self.asks else {}
        if differing := [name for name in names if header.get(name) != kept.get(name)]:
            line = f"kept answers of another check ({self.path}): expected the same options"
            sides = [f"{name}: {kept.get(name)} | {header.get(name)}" for name in differing]
            raise MismatchError.of(line, sides, " (kept | asked)")
        self._header = header
        self.note(OPTIONS, plan.changeable())

    def _open(self, path: Path) -> Log:
        if self._resumes and not path.is_file():
            replace_file(path, self._content)

        def check_header(_: dict[str, Any]) -> None:
            if not self._resumes:  # another check has written the file meanwhile
                raise self._exists()

        header = {"sps_check": SCHEMA, "plan": self._header}
        return HeadedLog(path, header, check_header, lambda _: None)

    def pack(self) -> None:
        """Close the file, and compress it where its name says so."""
        self.close()
        if self._log is not None and self.path is not None and self.name != self.path:
            replace_file(self.name, gzip.compress(self.path.read_bytes(), mtime=0))  # type: ignore[arg-type]
            self.path.unlink()

    def _exists(self) -> UsageError:
        return UsageError(
            f"{self.name} is there already (`keep`): expected a new file. Continue with `resume` "
            f"{self.name}"
        )

    def _no_journal(self) -> DataError:
        return DataError(
            f"no kept answers ({self.name}): expected a file of `sps check`. Check `resume`"
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
            self._log = self._log or self._open(self.path)
            notes, self._notes = self._notes, {}
            for name, noted in (*notes.items(), (key, value)):
                self._log.append({"key": name, "value": finite(noted, logarithm)})
        self._values[key] = value

    def note(self, key: str, value: Any) -> None:
        """Keep a value that is no answer, in the file from the next answer on."""
        self._notes[key] = value

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def _is_used(path: Path) -> bool:
    return os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0)


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


def lines_of(content: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the checked records of a file; one that was cut at its end is left out.

    Raises:
        DataError: damage before the end.
    """
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        values = decode(line, number)
        if values is None:
            if number == len(lines) - 1 and not line.endswith(b"\n"):
                return
            raise DataError(
                f"damaged record ({path}, line {number + 1}): expected kept answers of `sps check`"
            )
        yield values
