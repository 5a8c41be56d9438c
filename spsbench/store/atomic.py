"""Files and folders that are there whole or not at all, whatever happens to the process."""

import contextlib
import errno
import itertools
import os
from pathlib import Path

from spsbench.errors import WriteError
from spsbench.hardware.files import sync


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never half.

    A device or a pipe (`/dev/stdout`, `>(less)`) is written into, and stays what it is.

    Raises:
        WriteError: it could not be written; the old file is untouched.
    """
    if _is_device(path):
        _write_into(path, content)
        return
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)
    except BaseException as error:  # an interrupt, too, leaves nothing behind
        with contextlib.suppress(OSError, ValueError):  # a name that cannot be
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError.of(error, path) from error
        raise


def check_replaceable(path: Path) -> None:
    """Try whether a file could be written to `path`, before hours are spent on what goes into it.

    Raises:
        WriteError: it could not be.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_device(path):
            return
        draft = draft_of(path)
        draft.open("wb").close()
        draft.unlink()
    except OSError as error:
        raise WriteError.of(error, path) from error


def _is_device(path: Path) -> bool:
    """Return whether `path` is a device or a pipe, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_into(path: Path, content: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error
        os.set_blocking(handle, True)
        with open(handle, "wb") as file:
            file.write(content)
    except OSError as error:
        raise WriteError.of(error, path) from error


def draft_of(path: Path) -> Path:
    """Where this process writes what is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_drafts(folder: Path, pattern: str) -> None:
    """Remove what killed processes left of files whose names match `pattern`.

    The lock of these files must be held, so that no process is at work on one. A draft that cannot
    be removed is no harm.
    """
    with contextlib.suppress(OSError):
        for draft in folder.glob(f".{pattern}.*.tmp"):
            draft.unlink(missing_ok=True)


def next_free(path: Path, suffix: str) -> Path:
    """The first of `path.<suffix>-1`, `-2`, ... that is not there.

    Numbered, because a clock may be set back.
    """
    names = (path.with_name(f"{path.name}.{suffix}-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
