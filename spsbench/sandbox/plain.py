"""The levels without a helper program: the jail on its own, and no isolation at all."""

import os
from pathlib import Path

from spsbench.sandbox import landlock
from spsbench.sandbox.interpreter import ENVIRONMENT, Interpreter
from spsbench.sandbox.levels import NOBODY, UNCONFINED, Level, UnavailableError, confined, inner
from spsbench.sandbox.verdict import ProgramLimits

SET_IDS = 0b11 << 6  # CAP_SETGID, CAP_SETUID


def jailed(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """Landlock and seccomp, for machines that allow no namespaces. Nothing can be written.

    Raises:
        UnavailableError: no Landlock, or one that does not govern the network.
    """
    abi = landlock.abi()
    if abi < landlock.FULL:
        raise UnavailableError(f"the kernel's ABI is {abi}, {landlock.FULL} is needed")
    drop = may_change_user() and interpreter.open_to_others()
    return Level(
        name="landlock",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=confined(abi=abi, interpreter=interpreter, scratch=False, drop=drop),
        flags={"landlock": abi, "seccomp": "allow list", "user": "nobody" if drop else "own"},
        environment=ENVIRONMENT,
    )


def may_change_user() -> bool:
    """Whether this is root, with the rights of root, where there is a user `nobody`."""
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


def unconfined(interpreter: Interpreter, limits: ProgramLimits) -> Level:
    """Limits of resources, and nothing that holds a program that means harm."""
    return Level(
        name="none",
        command=(),
        inner=inner(interpreter),
        python=interpreter.version,
        confinement=UNCONFINED,
        environment=ENVIRONMENT,
        folder=None,
    )
