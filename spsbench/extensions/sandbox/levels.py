"""Levels of isolation: the interpreter, its limits, and its confinement.

A level is a command around the jail (`jail.py`), which confines itself and runs one program.
"""

import functools
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import Exit, SpsError
from spsbench.extensions.sandbox import confinement
from spsbench.extensions.sandbox.confinement import ALLOWED, JAIL

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/share/zoneinfo")
"""Shared libraries that extension modules need, and the time zones of `zoneinfo`."""
LINKED = ("/lib", "/lib64")  # on most systems links into /usr; the loader's path uses one
LOADER_CACHE = "/etc/ld.so.cache"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

FLAGS = ("-P", "-s", "-S", "-B")  # no user, site or script folder on the path; no .pyc
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the whole environment; makes the order of sets reproducible


class Interpreter(NamedTuple):
    """A Python, and the folders and files that it reads, with links resolved."""

    executable: str
    folders: tuple[str, ...]
    version: str  # sys.version

    def open_to_others(self) -> bool:
        """Return whether an unprivileged user can run the interpreter.

        If so, root can run programs as that user.
        """
        return all(map(_open_to_others, (self.executable, *self.folders)))


@functools.cache
def interpreter() -> Interpreter:
    """Return this process's own Python, outside any virtual environment."""
    executable = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    own = [os.path.dirname(os.__file__)]
    own += filter(None, [sysconfig.get_config_var("DESTSHARED")])  # compiled modules
    shared = sysconfig.get_config_var("LIBDIR")
    if shared and Path(shared, sysconfig.get_config_var("INSTSONAME") or "-").exists():
        own.append(shared)
    return Interpreter(executable, tuple(_outermost([*SYSTEM, *LINKED, *own])), sys.version)


def processor_family() -> str:
    """Return `x86_64` or `aarch64`, where system calls are known."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the existing paths, links resolved, without those inside another one."""
    real = {os.path.realpath(path) for path in paths if Path(path).is_dir()}
    return sorted(path for path in real if not any(map(real.__contains__, _folders_above(path))))


def _folders_above(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents]


def _open_to_others(path: str) -> bool:
    bits = stat.S_IROTH | (stat.S_IXOTH if Path(path).is_dir() else 0)
    own = Path(path).stat().st_mode & bits == bits
    return own and all(
        Path(parent).stat().st_mode & stat.S_IXOTH for parent in _folders_above(path)
    )


JAIL_SCRIPT = str(Path(__file__).with_name("jail.py"))
WORK = "/work"  # the scratch folder inside, where there is one
NOBODY = 65534


class SandboxError(SpsError):
    """A program cannot be isolated here, so it is not run."""

    code = Exit.SANDBOX


class BrokenError(SandboxError):
    """The sandbox did not start, so nothing is known about the program."""

    def __init__(self, level: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the sandbox does not come up ({level}: {reason}): expected it to. What is not scored "
            "stays so: see `sps doctor`, repair it and go on"
        )


class BusyError(BrokenError):
    """The system has no room for another process or thread; the sandbox itself is intact."""

    def __init__(self, what: str) -> None:
        self.reason = "no room for another process or thread"
        SandboxError.__init__(
            self,
            f"{self.reason} ({what}): expected the limits on tasks to leave some. End other "
            "programs, raise them (ulimit -u, a container's pids limit) or use fewer `workers`, "
            "and go on: what is not scored stays so",
        )


class LevelUnavailableError(Exception):
    """A level is not available on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A way to run a program: the commands around the jail, and its confinement."""

    name: str
    command: tuple[str, ...]  # followed by the level's own arguments and `inner`
    inner: tuple[str, ...]  # the interpreter and the jail's script, as seen inside
    python: str  # sys.version inside
    confinement: Mapping[str, Any]  # for the jail
    flags: Mapping[str, Any] = field(default_factory=dict)  # for logs
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = "/"  # working directory; None: a new one each time
    own_pids: bool = False  # process ids inside are not those outside
    info: str = ""  # option for a descriptor that receives the id of the init process


def inner(interpreter: Interpreter, script: str = JAIL_SCRIPT) -> tuple[str, ...]:
    """Return the command inside the sandbox."""
    return (interpreter.executable, *FLAGS, script)


def jail_tasks(
    *, abi: int, interpreter: Interpreter, scratch: bool, drop: bool, apart: bool = False
) -> dict[str, Any]:
    """Return the jail's tasks: Landlock, capabilities, calls, timers, perhaps another user.

    `apart`: the jail starts in a user namespace of its own and need not make one.

    Raises:
        LevelUnavailableError: the machine's system calls are not in the tables.
    """
    kind = processor_family()
    if kind not in ALLOWED:
        raise LevelUnavailableError(f"system calls of {kind} are not known")
    read = [*interpreter.folders, LOADER_CACHE, *DEVICES]
    rules = confinement.landlock_rules(abi, read, WORK if scratch else None)
    return {
        "landlock": rules.plain(),
        "filter": tuple(confinement.build_filter(kind)),
        "calls": JAIL[kind],
        "uid": NOBODY if drop else None,
        "apart": apart,
        "startup_checks": confinement.startup_checks(kind),
    }


UNCONFINED: Mapping[str, Any] = {
    "landlock": None,
    "filter": None,
    "calls": None,
    "uid": None,
    "apart": False,
    "startup_checks": {},
}


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of the resources of a program."""

    timeout: float = 3.0  # seconds of processor time; of the wall clock GRACE more
    memory: int = 1024  # MiB of address space
    output: int = 10  # MiB written to stdout and stderr together
    files: int = 32  # MiB of scratch space, where the level has any

    def described(self) -> dict[str, Any]:
        """Return plain values for logs."""
        return asdict(self)


GRACE = 0.7
"""Seconds of the wall clock beyond the limit of processor time."""
MIB = 1 << 20
