"""Files that a user names: none is waited for, and none without end is read."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

LIMIT = 1 << 30  # bytes


def open_file(path: Path) -> BufferedReader:
    """Open a file or a pipe for reading. A pipe that nobody writes is empty, not waited for.

    Raises:
        OSError: it cannot be opened, or is a folder, or a device, which may have no end.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        file.close()
        raise OSError(errno.EINVAL, "neither a file nor a pipe", str(path))
    os.set_blocking(file.fileno(), True)
    return file


def read_file(path: Path, limit: int = LIMIT) -> bytes:
    """Return the content of a file or a pipe.

    Raises:
        OSError: as `open_file`; or it has more than `limit` bytes.
    """
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
