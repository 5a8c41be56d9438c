"""The levels: bubblewrap, the jail alone, and none.

`bwrap` puts namespaces and a nearly empty file system around the jail. `landlock` is the
jail alone, for machines that allow no namespaces.
"""

import os
import shutil
import subprocess
from pathlib import Path

from spsbench.extensions.sandbox import confinement
from spsbench.extensions.sandbox.levels import (
    DEVICES,
    ENVIRONMENT,
    JAIL_SCRIPT,
    LINKED,
    LOADER_CACHE,
    MIB,
    NOBODY,
    UNCONFINED,
    WORK,
    Interpreter,
    Level,
    LevelUnavailableError,
    ProgramLimits,
    inner,
    jail_tasks,
)

NAME = "bwrap"
INSIDE = "/jail.py"
OLDEST = (0, 6)  # --size
NO_NESTING = (0, 8)  # --disable-userns; without it the filter alone refuses new namespaces

NAMESPACES = (  # not --unshare-all, which continues where a namespace is not available
    *("--unshare-user", "--unshare-ipc", "--unshare-pid"),
    *("--unshare-net", "--unshare-uts", "--unshare-cgroup"),
)
BUBBLEWRAP_GUARD = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
IDENTITY = ("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sps")


def bubblewrap_level(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """Return the level of bwrap, Landlock, seccomp and resource limits.

    Raises:
        LevelUnavailableError: a part is missing on this machine.
    """
    program = find_bubblewrap()
    if program is None:
        raise LevelUnavailableError("not installed")
    version = bubblewrap_version(program)
    abi = confinement.landlock_abi()
    if abi < 1:
        raise LevelUnavailableError("the kernel's Landlock is off")
    nesting = ("--disable-userns",) if version >= NO_NESTING else ()
    view = (*system_view(interpreter), *device_view(), "--ro-bind", JAIL_SCRIPT, INSIDE)
    scratch = ("--size", str(limits.files * MIB), "--tmpfs", WORK, "--chdir", WORK)
    return Level(
        name=NAME,
        command=(
            *(program, *NAMESPACES, *nesting, *BUBBLEWRAP_GUARD, *IDENTITY),
            *(*view, *scratch, "--remount-ro", "/"),
        ),
        inner=("--", *inner(interpreter, INSIDE)),
        python=interpreter.version,
        confinement=jail_tasks(
            abi=abi, interpreter=interpreter, scratch=True, drop=False, apart=True
        ),
        flags={
            "bwrap": ".".join(map(str, version)),
            "options": [*NAMESPACES, *nesting, *BUBBLEWRAP_GUARD],
            "landlock": abi,
            "seccomp": "allow list",
        },
        environment=ENVIRONMENT,
        own_pids=True,
        info="--info-fd",
    )


def find_bubblewrap() -> str | None:
    """Return the path of bwrap, or None."""
    found = shutil.which("bwrap")
    return None if found is None else os.path.realpath(found)


def bubblewrap_version(program: str) -> tuple[int, ...]:
    """Return the version of bwrap, such as `(0, 8, 0)`.

    Raises:
        LevelUnavailableError: bwrap does not run, or is too old.
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


def system_view(interpreter: Interpreter) -> tuple[str, ...]:
    """Return bwrap's arguments that bind the interpreter and its libraries, read-only.

    Each path stays the same: at another path, an interpreter may silently load another's library.
    """
    options: list[str] = []
    for path in (*interpreter.folders, interpreter.executable):
        options += ("--ro-bind", path, path)
    for path in LINKED:
        if os.path.islink(path):
            options += ("--symlink", os.readlink(path), path)
    if os.path.exists(LOADER_CACHE):
        options += ("--ro-bind", LOADER_CACHE, LOADER_CACHE)
    return tuple(options)


def device_view() -> tuple[str, ...]:
    """Return bwrap's arguments for harmless devices: no terminal, no shared memory."""
    return tuple(word for path in DEVICES for word in ("--dev-bind", path, path))


SET_IDS = 0b11 << 6  # CAP_SETGID, CAP_SETUID


def landlock_level(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """Return the level of Landlock and seccomp alone, where nothing can be written.

    Meant for machines that allow no namespaces.

    Raises:
        LevelUnavailableError: no Landlock, or a version that does not govern the network.
    """
    abi = confinement.landlock_abi()
    if abi < confinement.FULL:
        raise LevelUnavailableError(f"the kernel's ABI is {abi}, {confinement.FULL} is needed")
    drop = may_change_user() and interpreter.open_to_others()
    return Level(
        name="landlock",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=jail_tasks(abi=abi, interpreter=interpreter, scratch=False, drop=drop),
        flags={"landlock": abi, "seccomp": "allow list", "user": "nobody" if drop else "own"},
        environment=ENVIRONMENT,
    )


def may_change_user() -> bool:
    """Return whether this process is root, with its rights, and a user `nobody` exists."""
    if os.geteuid() != 0:
        return False
    capabilities = 0
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    known = all(map(_has_nobody, ("/proc/self/uid_map", "/proc/self/gid_map")))
    return capabilities & SET_IDS == SET_IDS and known


def _has_nobody(path: str) -> bool:
    lines = (line.split() for line in Path(path).read_text(encoding="ascii").splitlines())
    return any(int(first) <= NOBODY < int(first) + int(count) for first, _, count in lines)


def unconfined_level(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """Return the level of resource limits alone, no protection from malicious programs."""
    return Level(
        name="none",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=UNCONFINED,
        environment=ENVIRONMENT,
        folder=None,
    )
