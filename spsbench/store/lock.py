"""One writer a file: flock, or on file systems that have none, a file that names its holder."""

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
    """A lock on a file, held until `close` or the end of the process, however it ends."""

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        """Take the lock of `path`, created if it is not there; try for `wait` seconds.

        Raises:
            InUseError: another process holds it.
            WriteError: the file cannot be created.
        """
        self.path = path
        self._file = -1
        self._held: Path | None = None  # the file that stands in for flock
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
        """Let others have it."""
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
        """Whether the locked file is still the one at `path`: its folder may have been moved."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def _hold(self) -> bool:
        """Lock without flock. The file is linked in whole, so that nobody reads half a name."""
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
        """Remove the file of a holder that has ended; the next try may then take the lock."""
        with contextlib.suppress(FileNotFoundError):
            text = held.read_text(encoding="utf-8")
            if not has_ended(text):
                return
            held.rename(spare)  # one of several contenders gets it
            if spare.read_text(encoding="utf-8") != text:  # a newer one: another was faster
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
    """What changes when this machine starts anew: process ids of before mean nothing then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def has_ended(holder: str) -> bool:
    """Whether the process that `host boot pid` names is surely gone."""
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
