"""Errors: one line for the user, and an exit code (sysexits.h where it has one).

A message says what, where and what was expected, and then what to do:
`<what> (<where>): <expected>. <what to do>`. The command line prints it behind `error: `.

A message names an option by its field, in backticks: "`draft` without `weights`". The library
shows it so; the command line shows the flag instead (`cli/terminal.py`). Words of others go through
`as_it_is`: their backticks name no option of ours.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import Any, Self


class Exit(IntEnum):
    """The exit codes of `sps`."""

    OK = 0
    FAILED_SAMPLES = 1  # the run finished, some samples failed
    USAGE = 2
    SANDBOX = 3  # nothing here can hold model-written code, so it was not run
    IN_USE = 4  # another process writes this run
    MISMATCH = 5  # the run on disk is of another configuration
    NOT_VALID = 6  # an audit whose own controls failed, so that it says nothing
    BIAS = 7  # an audit that found text which is not distributed as the target's
    WORSE = 8  # an audit whose results are worse than those that were expected
    DATA = 65  # a model, prompt or file that cannot be used
    MISSING = 66  # an input that is not there
    UNAVAILABLE = 69  # hub or device out of reach
    INTERNAL = 70  # a bug of ours: traceback in a log file
    CANNOT_CREATE = 73
    CANNOT_WRITE = 74
    MEMORY = 75
    PERMISSION = 77
    INTERRUPTED = 130


MAX_MESSAGE = 4_000  # characters


class SpsError(Exception):
    """An error with a line for the user and an exit code; what is too long to read is cut."""

    code: Exit = Exit.INTERNAL

    def __init__(self, message: str = "") -> None:
        is_long = len(message) > MAX_MESSAGE
        super().__init__(f"{message[:MAX_MESSAGE]}..." if is_long else message)


class UsageError(SpsError):
    """Flags or arguments that are wrong or contradict each other."""

    code = Exit.USAGE


class DataError(SpsError):
    """An input that exists but cannot be used."""

    code = Exit.DATA


class PlugInError(DataError):
    """A plug-in of another package that fails, or returns a wrong result."""


class MissingError(SpsError):
    """An input that does not exist."""

    code = Exit.MISSING


class UnavailableError(SpsError):
    """A hub or a device that is out of reach."""

    code = Exit.UNAVAILABLE


class OutOfMemoryError(SpsError):
    """Not enough memory or disk for what was asked."""

    code = Exit.MEMORY


class PermissionDeniedError(SpsError):
    """A file that may not be read or written."""

    code = Exit.PERMISSION

    @classmethod
    def unreadable(cls, path: Path, name: str = "") -> Self:
        """Return the error for a file that may not be read; `name`, else the file's, is shown."""
        return cls(
            f"{name or path.name} cannot be read ({path}): expected read permission. "
            "Change its mode or owner"
        )


class BatchError(SpsError):
    """Texts of a batch that failed; the others were finished.

    Attributes:
        texts: in the order of the prompts; None for those that failed.
    """

    code = Exit.FAILED_SAMPLES

    def __init__(self, message: str, texts: Sequence[Any]) -> None:
        super().__init__(message)
        self.texts = texts


class InUseError(SpsError):
    """A run that another process is writing."""

    code = Exit.IN_USE


class MismatchError(SpsError):
    """A run on disk whose configuration is not the one asked for."""

    code = Exit.MISMATCH

    @classmethod
    def of(cls, line: str, differing: Iterable[str], sides: str = "") -> Self:
        """Return an error of `line` and, after `Differing` and `sides`, a line per difference."""
        return cls(f"{line}. Differing{sides}:" + "".join(f"\n  {field}" for field in differing))


class CannotCreateError(SpsError):
    """A folder that cannot be created."""

    code = Exit.CANNOT_CREATE


class WriteError(SpsError):
    """A result that could not be written."""

    code = Exit.CANNOT_WRITE

    @classmethod
    def of(cls, error: OSError, path: Path, todo: str = "Make room, or name another place") -> Self:
        """Return an error that names `path`, the reason of the failed system call, and `todo`."""
        reason = error.strerror or error
        return cls(f"cannot write {path} ({reason}): expected a writable place with room. {todo}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean X?` with the known name most like `name`; empty if none is like it."""
    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


_FIELD = re.compile(r"`([a-z][a-z0-9_]*+)`")
_OTHERS = "`\ufe0f"  # a backtick of others: with a mark that no terminal shows


def as_it_is(text: str) -> str:
    """Return text with an invisible mark after each backtick, so that it names no option."""
    return text.replace(_OTHERS, "`").replace("`", _OTHERS)


def without_marks(text: str) -> str:
    """Return a message without the invisible marks that `as_it_is` puts after backticks."""
    return text.replace(_OTHERS, "`")


def replace_fields(text: str, replacement: Callable[[str], str | None]) -> str:
    """Replace each `field`, backticks included, by `replacement` of its name; None leaves it."""
    return _FIELD.sub(lambda field: replacement(field[1]) or field[0], text)


_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "not enough memory",
    "out of memory",
)


def first_line(error: BaseException) -> str:
    """Return an error's first line, cut to 300 characters and without a `.` or `:` at its end.

    The second line is joined to a first that ends with a colon. An error without words is `no
    message`. Words of an error that is no SpsError go through `as_it_is`.
    """
    lines = str(error).strip().splitlines() or ["no message"]
    line = " ".join(map(str.strip, lines[: 1 + lines[0].rstrip().endswith(":")]))
    line = line[:300].rstrip(".:")
    return line if isinstance(error, SpsError) else as_it_is(line)


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust panicked, which is no `Exception` in Python."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error's type or words say that memory ran out; False for an SpsError."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, SpsError):
        return False
    return any(words in str(error).lower() for words in _MEMORY)
