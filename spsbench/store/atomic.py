"""Files and folders that are there whole or not at all, whatever happens to the process."""

import contextlib
import itertools
import os
from pathlib import Path

from spsbench.errors import WriteError


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never half.

    A device or a pipe (`/dev/stdout`, `>(less)`) is written into, and stays what it is.

    Raises:
        WriteError: it could not be written; the old file is untouched.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        _write_into(path, content)
        return
    draft = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that cannot be
            draft.unlink(missing_ok=True)
        raise WriteError.of(error, path) from error


def _write_into(path: Path, content: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error
        os.set_blocking(handle, True)
        with open(handle, "wb") as file:
            file.write(content)
    except OSError as error:
        raise WriteError.of(error, path) from error


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def next_free(path: Path, suffix: str) -> Path:
    """The first of `path.<suffix>-1`, `-2`, ... that is not there.

    Numbered, because a clock may be set back.
    """
    names = (path.with_name(f"{path.name}.{suffix}-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
