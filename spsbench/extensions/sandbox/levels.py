"""The levels of isolation, each a command around the jail (`jail.py`), which confines itself.

`bwrap` puts namespaces and a nearly empty file system around the jail. `landlock` is the jail
alone, for machines that allow no namespaces; `none` is resource limits alone.
"""

import functools
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import Exit, SpsError
from spsbench.extensions.sandbox import confinement

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/share/zoneinfo")
"""Shared libraries that extension modules need, and the time zones of `zoneinfo`."""
LINKED = ("/lib", "/lib64")  # on most systems links into /usr; the loader's path uses one
LOADER_CACHE = "/etc/ld.so.cache"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

FLAGS = ("-P", "-s", "-S", "-B")  # no user, site or script folder on the path; no .pyc
JAIL_SCRIPT = str(Path(__file__).with_name("jail.py"))
WORK = "/work"  # the scratch folder inside, where there is one
NOBODY = 65534
MIB = 1 << 20


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


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of the resources of a program."""

    timeout: float = 3.0  # seconds of processor time; of the wall clock GRACE more
    memory: int = 1024  # MiB of address space
    output: int = 10  # MiB written to stdout and stderr together
    files: int = 32  # MiB of scratch space, where the level has any


GRACE = 0.7
"""Seconds of the wall clock beyond the limit of processor time."""


class Interpreter(NamedTuple):
    """A Python, and the folders and files that it reads, with links resolved."""

    executable: str
    folders: tuple[str, ...]


@functools.cache
def interpreter() -> Interpreter:
    """Return this process's Python outside any virtual environment, and what it reads; cached."""
    executable = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    folders = [*SYSTEM, *LINKED, os.path.dirname(os.__file__)]
    folders += filter(None, [sysconfig.get_config_var("DESTSHARED")])  # compiled modules
    shared = sysconfig.get_config_var("LIBDIR")
    if shared and Path(shared, sysconfig.get_config_var("INSTSONAME") or "-").exists():
        folders.append(shared)
    return Interpreter(executable, tuple(_outermost(folders)))


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the folders among `paths` in order, links resolved, without those inside another."""
    real = {os.path.realpath(path) for path in paths if Path(path).is_dir()}
    return sorted(path for path in real if not any(map(real.__contains__, _folders_above(path))))


def _folders_above(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents]


def _open_to_others(path: str) -> bool:
    """Return whether others may read a file, or list a folder, and enter all folders above it."""
    bits = stat.S_IROTH | (stat.S_IXOTH if Path(path).is_dir() else 0)
    is_open = Path(path).stat().st_mode & bits == bits
    return is_open and all(Path(p).stat().st_mode & stat.S_IXOTH for p in _folders_above(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A way to run a program: the commands around the jail, and its confinement."""

    name: str
    command: tuple[str, ...] = ()  # followed by the level's own arguments and `inner`
    inner: tuple[str, ...]  # the interpreter and the jail's script, as seen inside
    python: str = sys.version  # inside
    confinement: Mapping[str, Any]  # for the jail
    flags: Mapping[str, Any] = field(default_factory=dict)  # for logs
    folder: str | None = "/"  # working directory; None: a new one each time
    own_pids: bool = False  # process ids inside are not those outside
    info: str = ""  # option for a descriptor that receives the id of the init process

    @property
    def protection(self) -> str:
        """Return in words what the jail checks at every start: `9 calls refused at each start`."""
        calls = sum(map(len, self.confinement["startup_checks"].values()))
        return f"{calls} calls refused at each start" if calls else "nothing is isolated"


def bubblewrap_level(limits: ProgramLimits) -> Level:
    """Return the level of bwrap, Landlock, seccomp and resource limits; it is not started.

    Raises LevelUnavailableError without a bwrap that tells its version, 0.6 or newer, with Landlock
    off, or as `jail_tasks`. Whether namespaces are allowed shows when it is started.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise LevelUnavailableError("not installed")
    program = os.path.realpath(program)
    version = bubblewrap_version(program)
    abi = confinement.landlock_abi()
    if abi < 1:
        raise LevelUnavailableError("the kernel's Landlock is off")
    nesting = ("--disable-userns",) if version >= NO_NESTING else ()
    devices = tuple(word for path in DEVICES for word in ("--dev-bind", path, path))
    view = (*system_view(), *devices, "--ro-bind", JAIL_SCRIPT, INSIDE)
    scratch = ("--size", str(limits.files * MIB), "--tmpfs", WORK, "--chdir", WORK)
    return Level(
        name="bwrap",
        command=(
            *(program, *NAMESPACES, *nesting, *BUBBLEWRAP_GUARD, *IDENTITY),
            *(*view, *scratch, "--remount-ro", "/"),
        ),
        inner=("--", *inner(INSIDE)),
        confinement=jail_tasks(abi, scratch=True, apart=True),
        flags={
            "bwrap": ".".join(map(str, version)),
            "options": [*NAMESPACES, *nesting, *BUBBLEWRAP_GUARD],
            "landlock": abi,
            "seccomp": "allow list",
        },
        own_pids=True,
        info="--info-fd",
    )


INSIDE = "/jail.py"
OLDEST = (0, 6)  # --size
NO_NESTING = (0, 8)  # --disable-userns; without it the filter alone refuses new namespaces

NAMESPACES = (  # not --unshare-all, which continues where a namespace is not available
    *("--unshare-user", "--unshare-ipc", "--unshare-pid"),
    *("--unshare-net", "--unshare-uts", "--unshare-cgroup"),
)
BUBBLEWRAP_GUARD = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
IDENTITY = ("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sps")


def bubblewrap_version(program: str) -> tuple[int, ...]:
    """Run bwrap for its version, such as `(0, 8, 0)`, and return it.

    Raises LevelUnavailableError where bwrap does not run, or is too old.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=10, check=True)
        version = tuple(int(part) for part in done.stdout.split()[-1].split(b"."))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise LevelUnavailableError(f"{program} does not run: {error}") from error
    if version < OLDEST:
        raise LevelUnavailableError(
            f"{'.'.join(map(str, version))} is too old: 0.6 or newer is needed"
        )
    return version


def system_view() -> tuple[str, ...]:
    """Return bwrap's arguments that bind the interpreter and its libraries, read-only.

    Each path stays the same: at another path, an interpreter may silently load another's library.
    """
    options: list[str] = []
    for path in (*interpreter().folders, interpreter().executable):
        options += ("--ro-bind", path, path)
    for path in LINKED:
        if os.path.islink(path):
            options += ("--symlink", os.readlink(path), path)
    if os.path.exists(LOADER_CACHE):
        options += ("--ro-bind", LOADER_CACHE, LOADER_CACHE)
    return tuple(options)


def landlock_level(limits: ProgramLimits) -> Level:
    """Return the level of Landlock, seccomp and resource limits, where nothing can be written.

    It is meant for machines that allow no namespaces, and is not started. Root becomes `nobody`, if
    it may and `nobody` can run the interpreter. Raises LevelUnavailableError without Landlock, with
    one that does not govern the network, or as `jail_tasks`.
    """
    abi = confinement.landlock_abi()
    if abi < confinement.FULL:
        raise LevelUnavailableError(f"the kernel's ABI is {abi}, {confinement.FULL} is needed")
    paths = (interpreter().executable, *interpreter().folders)
    drop = may_change_user() and all(map(_open_to_others, paths))
    return Level(
        name="landlock",
        inner=inner(),
        confinement=jail_tasks(abi, scratch=False, drop=drop),
        flags={"landlock": abi, "seccomp": "allow list", "user": "nobody" if drop else "own"},
    )


SET_IDS = 0b11 << 6  # CAP_SETGID, CAP_SETUID


def may_change_user() -> bool:
    """Return whether this process is root, may change its user, and its namespace has `NOBODY`."""
    if os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    lines = (line.partition(":") for line in status.splitlines())
    capabilities = next((int(value, 16) for name, _, value in lines if name == "CapEff"), 0)
    maps = ("/proc/self/uid_map", "/proc/self/gid_map")
    return capabilities & SET_IDS == SET_IDS and all(map(_has_nobody, maps))


def _has_nobody(path: str) -> bool:
    lines = (line.split() for line in Path(path).read_text(encoding="ascii").splitlines())
    return any(int(first) <= NOBODY < int(first) + int(count) for first, _, count in lines)


def unconfined_level(limits: ProgramLimits) -> Level:
    """Return the level of resource limits alone, no protection from malicious programs."""
    return Level(name="none", inner=inner(), confinement=UNCONFINED, folder=None)


def inner(script: str = JAIL_SCRIPT) -> tuple[str, ...]:
    """Return the command inside the sandbox: the interpreter, and the jail at the path `script`."""
    return (interpreter().executable, *FLAGS, script)


def jail_tasks(
    abi: int, *, scratch: bool, drop: bool = False, apart: bool = False
) -> dict[str, Any]:
    """Return what the jail must do to confine itself, with the keys of `UNCONFINED`.

    `abi` is the version of the kernel's Landlock. `scratch`: the folder `WORK` exists inside, and
    may be written. `drop`: root becomes `nobody`. `apart`: the jail starts in a user namespace of
    its own and need not make one. Raises LevelUnavailableError where the machine's system calls are
    not in the tables.
    """
    machine = processor_family()
    if machine not in confinement.ALLOWED:
        raise LevelUnavailableError(f"system calls of {machine} are not known")
    read = [*interpreter().folders, LOADER_CACHE, *DEVICES]
    return {
        "landlock": confinement.landlock_rules(abi, read, WORK if scratch else None),
        "filter": confinement.build_filter(machine),
        "calls": confinement.JAIL[machine],
        "uid": NOBODY if drop else None,
        "apart": apart,
        "startup_checks": confinement.startup_checks(machine),
    }


UNCONFINED: Mapping[str, Any] = {
    "landlock": None,
    "filter": None,
    "calls": None,
    "uid": None,
    "apart": False,
    "startup_checks": {},
}


def processor_family() -> str:
    """Return `x86_64` or `aarch64`, where system calls are known, else the machine's own name."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
