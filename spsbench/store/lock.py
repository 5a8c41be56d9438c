"""File locks with one writer, by flock, which the system releases however the holder ends."""

import fcntl
import os
from pathlib import Path

from spsbench.errors import InUseError, WriteError


class Lock:
    """A file that is open to read and append, and locked until `close` or the process's end."""

    def __init__(self, path: Path) -> None:
        """Take the lock of `path`, made if missing; InUseError: taken. WriteError: refused."""
        self.file = -1
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.file = os.open(path, flags, 0o644)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self.file), path.stat()):
                raise BlockingIOError  # its folder has been moved meanwhile
        except OSError as error:
            opened = self.file >= 0
            self.close()
            if opened and isinstance(error, BlockingIOError | FileNotFoundError):
                raise InUseError(
                    f"another process writes this run ({path}): expected one writer. Wait for "
                    "it, or give this run another folder"
                ) from error
            raise WriteError.of(error, path) from error

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
