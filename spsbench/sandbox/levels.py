"""What a level of isolation is, and what of it is done inside by the jail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spsbench.errors import Exit, SpsError
from spsbench.sandbox import doors, landlock, seccomp
from spsbench.sandbox.interpreter import DEVICES, FLAGS, LOADER_CACHE, Interpreter, machine
from spsbench.sandbox.syscalls import JAIL, NUMBERS

JAIL_SCRIPT = str(Path(__file__).with_name("jail.py"))
WORK = "/work"  # the scratch folder inside, where there is one
NOBODY = 65534


class SandboxError(SpsError):
    """A program cannot be isolated here, so it is not run."""

    code = Exit.SANDBOX


class BrokenError(SandboxError):
    """A sandbox that did not come up, so nothing is known about the program."""

    def __init__(self, level: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the sandbox does not come up ({level}: {reason}): expected it to. What is not scored "
            "stays so: see `sps doctor`, repair it and go on"
        )


class BusyError(BrokenError):
    """The system had no room for another process or thread: nothing is wrong with the sandbox."""

    def __init__(self, what: str) -> None:
        self.reason = "no room for another process or thread"
        SandboxError.__init__(
            self,
            f"{self.reason} ({what}): expected the limits on tasks to leave some. End other "
            "programs, raise them (ulimit -u, a container's pids limit) or use fewer --workers, "
            "and go on: what is not scored stays so",
        )


class UnavailableError(Exception):
    """Why a level cannot be had here, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One way to run a program."""

    name: str
    command: tuple[str, ...]  # to it `own` arguments and then `inner` are added
    inner: tuple[str, ...]  # the interpreter and the jail's script, as seen inside
    python: str  # sys.version inside; empty: unknown until it has been asked
    confinement: Mapping[str, Any]  # for the jail
    flags: Mapping[str, Any] = field(default_factory=dict)  # for logs
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = "/"  # where the process is started; None: a new one each time
    own_pids: bool = False  # process ids inside are not those outside
    info: str = ""  # the option for a descriptor to which it writes the number of its init process
    container: str | None = None  # the engine whose containers must be removed by name


def inner(interpreter: Interpreter, script: str = JAIL_SCRIPT) -> tuple[str, ...]:
    """The command inside the sandbox."""
    return (interpreter.executable, *FLAGS, script)


def confined(
    *, abi: int, interpreter: Interpreter, scratch: bool, drop: bool, apart: bool = False
) -> dict[str, Any]:
    """What the jail does: Landlock, capabilities, system calls, timers, and perhaps another user.

    `apart`: it finds itself in a user namespace of its own, and need not try to make one.

    Raises:
        UnavailableError: a machine whose system calls are not known here.
    """
    kind = machine()
    if kind not in NUMBERS:
        raise UnavailableError(f"system calls of {kind} are not known")
    read = [*interpreter.folders, LOADER_CACHE, *DEVICES]
    rules = landlock.rules(abi, read, WORK if scratch else None)
    return {
        "landlock": rules.plain(),
        "filter": tuple(seccomp.build(kind)),
        "calls": JAIL[kind],
        "uid": NOBODY if drop else None,
        "apart": apart,
        "doors": doors.doors(kind),
    }


UNCONFINED: Mapping[str, Any] = {
    "landlock": None,
    "filter": None,
    "calls": None,
    "uid": None,
    "apart": False,
    "doors": {},
}
