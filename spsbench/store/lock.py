"""File locks with one writer, by flock, which the system releases however the holder ends."""

import contextlib
import fcntl
import os
from pathlib import Path

from spsbench.errors import InUseError, WriteError


class Lock:
    """A lock on a file, held until `close` or until the process ends in any way."""

    def __init__(self, path: Path) -> None:
        """Take the lock of `path`, which is created if missing.

        Raises:
            InUseError: another process holds the lock.
            WriteError: the file cannot be created.
        """
        self.path = path
        self._file = -1
        if not self._take():
            raise InUseError(
                f"this run is being written ({path}, by {self._owner()}): expected one "
                "writer. Wait for it, or give this run another folder"
            )

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self) -> bool:
        taken = False
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = self._is_current()
        except BlockingIOError:
            pass
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        finally:
            if not taken:
                self.close()
        return taken

    def _is_current(self) -> bool:
        """Return whether the locked file is still at `path`: its folder may have moved."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def _owner(self) -> str:
        with contextlib.suppress(OSError):
            inode = f":{self.path.stat().st_ino}"
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].endswith(inode):
                    return f"process {fields[4]}"
        return "a process on another machine or in a container"
