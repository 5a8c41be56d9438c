"""The Python that runs the programs: where it is, and what of the disk it needs."""

import functools
import hashlib
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/share/zoneinfo")
"""Shared libraries that extension modules need, and the time zones of `zoneinfo`."""
LINKED = ("/lib", "/lib64")  # on most systems links into /usr; the program loader's path names one
LOADER_CACHE = "/etc/ld.so.cache"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

FLAGS = ("-P", "-s", "-S", "-B")  # no folder of ours, the user's or site's on the path; no .pyc
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # all there is: the order of sets is then the same each time


class Interpreter(NamedTuple):
    """A Python and the folders and files that it reads, all with links resolved."""

    executable: str
    folders: tuple[str, ...]
    version: str  # sys.version

    @property
    def release(self) -> str:
        """`3.11.7`."""
        return self.version.split()[0]

    def open_to_others(self) -> bool:
        """Whether a user without rights could run it, so that root need not be root for that."""
        return all(map(_open_to_others, (self.executable, *self.folders)))


@functools.cache
def interpreter() -> Interpreter:
    """This process's own Python, outside any virtual environment."""
    executable = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    own = [os.path.dirname(os.__file__)]
    own += filter(None, [sysconfig.get_config_var("DESTSHARED")])  # compiled modules
    shared = sysconfig.get_config_var("LIBDIR")
    if shared and Path(shared, sysconfig.get_config_var("INSTSONAME") or "-").exists():
        own.append(shared)
    return Interpreter(executable, tuple(_outermost([*SYSTEM, *LINKED, *own])), sys.version)


def digest(path: str) -> str:
    """SHA-256 of a file; of one that may be run but not read, its size and times."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        kept = os.stat(path)
        return f"{kept.st_ino} {kept.st_size} {kept.st_mtime_ns} {kept.st_ctime_ns}"


def machine() -> str:
    """`x86_64` or `aarch64` where system calls are known."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())


def _outermost(paths: Iterable[str]) -> list[str]:
    """Those that are there, links resolved, without what lies in another one."""
    real = {os.path.realpath(path) for path in paths if Path(path).is_dir()}
    return sorted(path for path in real if not any(map(real.__contains__, _above(path))))


def _above(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents]


def _open_to_others(path: str) -> bool:
    bits = stat.S_IROTH | (stat.S_IXOTH if Path(path).is_dir() else 0)
    own = Path(path).stat().st_mode & bits == bits
    return own and all(Path(parent).stat().st_mode & stat.S_IXOTH for parent in _above(path))
