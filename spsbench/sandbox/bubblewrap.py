"""The strongest level: bubblewrap's namespaces around the jail, a view with hardly a file in it."""

import os
import shutil
import subprocess

from spsbench.sandbox import landlock
from spsbench.sandbox.interpreter import DEVICES, ENVIRONMENT, LINKED, LOADER_CACHE, Interpreter
from spsbench.sandbox.levels import (
    JAIL_SCRIPT,
    NOBODY,
    WORK,
    Level,
    UnavailableError,
    confined,
    inner,
)
from spsbench.sandbox.verdict import MIB, ProgramLimits

NAME = "bwrap"
INSIDE = "/jail.py"
OLDEST = (0, 6)  # --size
NO_NESTING = (0, 8)  # --disable-userns; without it the filter alone refuses new namespaces

NAMESPACES = (  # not --unshare-all: it goes on where one of them cannot be had
    *("--unshare-user", "--unshare-ipc", "--unshare-pid"),
    *("--unshare-net", "--unshare-uts", "--unshare-cgroup"),
)
GUARD = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
IDENTITY = ("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sps")


def level(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """bwrap, Landlock, seccomp and limits of resources.

    Raises:
        UnavailableError: a part of it is missing here; a self-test decides whether the rest holds.
    """
    program = find()
    if program is None:
        raise UnavailableError("not installed")
    version = version_of(program)
    abi = landlock.abi()
    if abi < 1:
        raise UnavailableError("the kernel's Landlock is off")
    nesting = ("--disable-userns",) if version >= NO_NESTING else ()
    view = (*system(interpreter), *devices(), "--ro-bind", JAIL_SCRIPT, INSIDE)
    scratch = ("--size", str(limits.files * MIB), "--tmpfs", WORK, "--chdir", WORK)
    return Level(
        name=NAME,
        command=(
            *(program, *NAMESPACES, *nesting, *GUARD, *IDENTITY),
            *(*view, *scratch, "--remount-ro", "/"),
        ),
        inner=("--", *inner(interpreter, INSIDE)),
        python=interpreter.version,
        confinement=confined(
            abi=abi, interpreter=interpreter, scratch=True, drop=False, apart=True
        ),
        flags={
            "bwrap": ".".join(map(str, version)),
            "options": [*NAMESPACES, *nesting, *GUARD],
            "landlock": abi,
            "seccomp": "allow list",
        },
        environment=ENVIRONMENT,
        own_pids=True,
        info="--info-fd",
    )


def find() -> str | None:
    """Where bwrap is."""
    found = shutil.which("bwrap")
    return None if found is None else os.path.realpath(found)


def version_of(program: str) -> tuple[int, ...]:
    """`(0, 8, 0)`.

    Raises:
        UnavailableError: it does not run, or is too old.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=10, check=True)
        version = tuple(int(part) for part in done.stdout.split()[-1].split(b"."))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise UnavailableError(f"{program} does not run: {error}") from error
    if version < OLDEST:
        raise UnavailableError(f"{'.'.join(map(str, version))} is too old: 0.6 or newer is needed")
    return version


def system(interpreter: Interpreter) -> tuple[str, ...]:
    """The interpreter and its libraries, each at its own path, read-only.

    Bound elsewhere, an interpreter may load another one's library without a word.
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


def devices() -> tuple[str, ...]:
    """The harmless ones alone: no terminal, no shared memory."""
    return tuple(word for path in DEVICES for word in ("--dev-bind", path, path))
