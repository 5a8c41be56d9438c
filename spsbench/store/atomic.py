"""Atomic writes: files and folders that appear whole or not at all."""

import contextlib
import errno
import itertools
import os
from pathlib import Path

from spsbench.errors import WriteError
from spsbench.hardware.files import temporary_path, write_whole


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, or a link by a file, so that readers see old or new content.

    A device or a pipe with a reader (`/dev/stdout`, `>(less)`) is written into and not replaced.
    WriteError: it failed.
    """
    try:
        if _is_device(path):
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe without a reader: an error
            os.set_blocking(handle, True)
            with open(handle, "wb") as file:
                file.write(content)
        else:
            write_whole(path, content)
    except OSError as error:
        raise WriteError.of(error, path) from error


def create_file(path: Path, content: bytes) -> bool:
    """Create a file whole; False: there is one, and it stays. WriteError: it cannot be made."""
    try:
        write_whole(path, content, os.link)
    except OSError as error:
        if not path.exists():
            raise WriteError.of(error, path) from error
        return False
    return True


def check_replaceable(path: Path) -> None:
    """Raise WriteError unless `path` can be written, before hours of computing its content."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_device(path):
            return
        draft = temporary_path(path)
        draft.open("wb").close()
        draft.unlink()
    except OSError as error:
        raise WriteError.of(error, path) from error


def _is_device(path: Path) -> bool:
    """Return whether `path` is a device or a pipe, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def remove_drafts(folder: Path, pattern: str) -> None:
    """Remove drafts by killed processes of files of a pattern that no other process writes."""
    with contextlib.suppress(OSError):
        for draft in folder.glob(f".{pattern}.*.tmp"):
            draft.unlink(missing_ok=True)


def next_free(path: Path, suffix: str) -> Path:
    """Return the first of `path.<suffix>-1`, ... that does not exist: a clock may be set back."""
    names = (path.with_name(f"{path.name}.{suffix}-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
