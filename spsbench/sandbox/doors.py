"""The few doors that the jail tries at every start, once it has shut them, before a program runs.

Around the sandbox there may be a filter that answers a call without carrying it out. What was
found behind another one says nothing then, so the doors that matter are not taken on trust. Each
can be opened by anybody where nothing shuts it, and does no harm.
"""

import errno
import os
from typing import Any

from spsbench.sandbox.syscalls import numbers

NUMBERS = {
    "x86_64": numbers("openat=257 socket=41 unshare=272 kill=62 execve=59 fchmod=91"),
    "aarch64": numbers("openat=56 socket=198 unshare=97 kill=129 execve=221 fchmod=52"),
}
HERE = -100  # AT_FDCWD
UNIX, STREAM = 1, 1
FILE = (errno.EACCES, errno.EPERM, errno.ENOENT)  # refused, or out of sight
CALL = (errno.EPERM, errno.ENOSYS)


Door = tuple[str, int, tuple[Any, ...], tuple[int, ...]]
"""A system call that must be refused: its name, number, arguments, what counts as a refusal."""


def doors(machine: str) -> dict[str, tuple[Door, ...]]:
    """Part of the confinement -> the doors that it shuts, as the jail takes them."""
    number = NUMBERS[machine]

    def opened(name: str, path: str, flags: int) -> Door:
        return name, number["openat"], (HERE, os.fsencode(path), flags), FILE

    def called(name: str, call: str, *arguments: Any) -> Door:
        return name, number[call], arguments, CALL

    return {
        "landlock": (
            opened("list the root", "/", os.O_RDONLY),
            opened("read the password file", "/etc/passwd", os.O_RDONLY),
            opened("write to a device", "/dev/zero", os.O_WRONLY),
        ),
        "filter": (
            opened("open without a right", "/dev/zero", os.O_ACCMODE),
            called("make a socket", "socket", UNIX, STREAM, 0),
            called("leave a namespace", "unshare", 0),
            called("signal a group", "kill", 0, 0),
            called("become a program", "execve", b"", None, None),
            called("change a mode", "fchmod", -1, 0),
        ),
    }
