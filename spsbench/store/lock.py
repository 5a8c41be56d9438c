"""File locks with one writer: flock, or a lock file with the holder's name without flock."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from spsbench.errors import InUseError, WriteError

NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
POLL = 0.02  # seconds


class Lock:
    """A lock on a file, held until `close` or until the process ends in any way."""

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        """Take the lock of `path`, which is created if missing; retry for `wait` seconds.

        Raises:
            InUseError: another process holds the lock.
            WriteError: the file cannot be created.
        """
        self.path = path
        self._file = -1
        self._held: Path | None = None  # the lock file in place of flock
        until = time.monotonic() + wait
        while not self._take():
            if time.monotonic() >= until:
                raise InUseError(
                    f"this run is being written ({path}, by {self._owner()}): expected one "
                    "writer. Wait for it, or give this run another folder"
                )
            time.sleep(POLL)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.unlink(missing_ok=True)
            self._held = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self) -> bool:
        taken = False
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            taken = self._flock() and self._is_current()
        except OSError as error:
            raise WriteError.of(error, self.path) from error
        finally:
            if not taken:
                self.close()
        return taken

    def _flock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            return self._hold()
        return True

    def _is_current(self) -> bool:
        """Return whether the locked file is still at `path`: its folder may have moved."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def _hold(self) -> bool:
        """Lock without flock, by linking a complete file, so that readers never see half a name."""
        held = self.path.with_name(f".{self.path.name}.held")
        mine = held.with_name(f"{held.name}.{socket.gethostname()}.{os.getpid()}")
        mine.write_text(f"{socket.gethostname()} {boot_id()} {os.getpid()}", encoding="utf-8")
        try:
            os.link(mine, held)
        except FileExistsError:
            self._release_dead(held, mine)
            return False
        finally:
            mine.unlink(missing_ok=True)
        self._held = held
        return True

    def _release_dead(self, held: Path, spare: Path) -> None:
        """Remove the lock file of a holder that has ended; the next try may then take the lock."""
        with contextlib.suppress(FileNotFoundError):
            text = held.read_text(encoding="utf-8")
            if not has_ended(text):
                return
            held.rename(spare)  # atomic: one of several contenders succeeds
            if spare.read_text(encoding="utf-8") != text:  # another process was faster
                os.link(spare, held)

    def _owner(self) -> str:
        held = self.path.with_name(f".{self.path.name}.held")
        with contextlib.suppress(OSError, ValueError):
            host, _, pid = held.read_text(encoding="utf-8").split()
            return f"process {pid} on {host}; if it is gone, remove {held.name}"
        with contextlib.suppress(OSError):
            inode = f":{self.path.stat().st_ino}"
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].endswith(inode):
                    return f"process {fields[4]}"
        return "a process on another machine or in a container"


def boot_id() -> str:
    """Return an id that changes at boot: older process ids are then invalid."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def has_ended(holder: str) -> bool:
    """Return whether the process that `host boot pid` names has certainly ended."""
    host, boot, pid = holder.split()
    if host != socket.gethostname():
        return False
    if boot != boot_id():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
