"""The kept answers of a check: a log of the store that begins with the plan."""

import math
import os
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from spsbench.errors import DataError, MismatchError, UsageError, first_line
from spsbench.extensions.check.options import CheckOptions
from spsbench.messages import ignore
from spsbench.store.atomic import check_replaceable
from spsbench.store.log import HeadedLog, entries_in
from spsbench.untrusted import read_untrusted

T = TypeVar("T")
SCHEMA = 2
BEGINNING = b'{"n":0,"sps_check":'
NO_LOGARITHM = -9999.0  # as engines write a probability of 0
MOST_BYTES = 1 << 28  # at most in a file, unpacked
OPTIONS = "options"  # the key of the parameters that a plan's header leaves out
REFUSED = "refused/"  # before a mode whose requests were refused
COUNTED = "counted/"  # before a part of a check whose drafts the server's counters tell
NO_ANSWER = (OPTIONS, "connected/", REFUSED, COUNTED)  # keys, or their beginnings


class Journal:
    """The answers of a check: a log that begins with the plan, opened with the first answer.

    `path` is the file's (None: nothing is kept), `resume` tells that it is there to go on with, and
    `asks` that answers which it lacks are asked for. `resumed`: some of them may come from either.
    """

    def __init__(self, path: Path | None, *, resume: bool = False, asks: bool = True) -> None:
        self.path, self.asks, self.resumed = path, asks, resume and asks
        self._values: dict[str, Any] = {}
        self._notes: dict[str, Any] = {}  # until the first answer
        self._log: HeadedLog | None = None
        self._header: dict[str, Any] = {}
        if path is None:
            return
        if asks and path.suffix == ".gz":
            raise UsageError(
                f"{path}: expected a file that is not compressed, to add answers to. Compress it "
                "after the check; `resume` without a URL reads it as it is"
            )
        if resume:
            self._read(path)
        elif os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0):
            raise self._exists()
        else:
            check_replaceable(path)

    def _read(self, path: Path) -> None:
        """Read header and answers, packed or not; DataError: damaged, too large or another's.

        MissingError: no file. A torn tail is left out; of equal keys the last counts.
        """
        content = read_untrusted(path, "a file of `sps check`", MOST_BYTES)
        if not (content.startswith(BEGINNING) or BEGINNING.startswith(content)):
            raise self._no_journal()
        for _, record in entries_in(BytesIO(content), path):
            plan, key = record.get("plan"), record.get("key")
            if not self._header:
                if record.get("sps_check") != SCHEMA or not isinstance(plan, dict) or not plan:
                    raise self._no_journal()
                self._header = plan
            elif not isinstance(key, str) or "value" not in record:
                raise self._no_journal()
            else:
                self._values[key] = record["value"]

    @property
    def plan(self) -> dict[str, Any]:
        """Return the options of the file; DataError: there is none."""
        if not self._header:
            raise self._no_journal()
        return {**self._header, **self._values.get(OPTIONS, {})}

    def begin(self, plan: CheckOptions) -> None:
        """Take these options as the header; MismatchError: kept answers depend on other options.

        If no server is asked, its address, the baseline and the weights may be others. Options that
        may change in a resumed check are noted. The file is written with the first answer.
        """
        header, kept = plan.header(), self._header
        may_change = () if self.asks else ("url", "baseline", "weights")  # which scores anew
        names = [n for n in {**header, **kept} if n not in may_change] if kept else []
        if differing := [name for name in names if header.get(name) != kept.get(name)]:
            line = f"kept answers of another check ({self.path}): expected the same options"
            sides = [f"{name}: {kept.get(name)} | {header.get(name)}" for name in differing]
            raise MismatchError.of(line, sides, " (kept | asked)")
        self._header = header
        self.note(OPTIONS, plan.changeable())

    def _exists(self) -> UsageError:
        return UsageError(
            f"{self.path} is there already (`keep`): expected a new file. Continue with `resume` "
            f"{self.path}"
        )

    def _no_journal(self) -> DataError:
        return DataError(
            f"no kept answers ({self.path}): expected a file of `sps check`. Check `resume`"
        )

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return sum(not key.startswith(NO_ANSWER) for key in self._values)

    async def get(
        self,
        key: str,
        read: Callable[[Any], T],
        ask: Callable[[], Awaitable[T]],
        write: Callable[[T], Any] = lambda value: value,
    ) -> T:
        """Return the kept value of `key`, converted by `read`, else what `ask` gives; keep that.

        `write` makes it plain. DataError: what is kept has another form, or no server is asked.
        """
        if key in self:
            return self.read(key, read)
        if not self.asks:
            raise DataError(
                f"an answer that was not kept ({self.path}: {key}): expected a file of a whole "
                "check. Name the server by its URL to go on"
            )
        value = await ask()
        self.keep(key, write(value))
        return value

    def read(self, key: str, convert: Callable[[Any], T]) -> T:
        """Return a kept value, converted; DataError: there is none, or one of another form."""
        try:
            return convert(self._values[key])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(
                f"kept answer {key} of another version ({self.path}: {type(error).__name__} "
                f"{first_line(error)}): expected one of this version. Start anew"
            ) from error

    def keep(self, key: str, value: Any) -> None:
        """Keep a value, after notes, in the file durably; UsageError: another check began that."""

        def check_header(_: dict[str, Any]) -> None:
            if not self.resumed:  # another check has written the file meanwhile
                raise self._exists()

        if self.path is not None:
            header = {"sps_check": SCHEMA, "plan": self._header}
            self._log = self._log or HeadedLog(self.path, header, check_header, ignore)
            notes, self._notes = self._notes, {}
            for name, noted in (*notes.items(), (key, value)):
                self._log.append({"key": name, "value": finite(noted, NO_LOGARITHM)})
        self._values[key] = value

    def note(self, key: str, value: Any) -> None:
        """Keep a value that is no answer, in the file from the next answer on."""
        self._notes[key] = value

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def finite(value: Any, instead: float | None) -> Any:
    """Return a copy with `instead` for each infinity and NaN, which JSON has not; tuples: lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return instead
    if isinstance(value, dict):
        return {key: finite(part, instead) for key, part in value.items()}
    return [finite(part, instead) for part in value] if isinstance(value, list | tuple) else value
