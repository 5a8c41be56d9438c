"""Landlock: this process may read some folders, write to one, and reach nothing else.

linux/landlock.h. From ABI 4 on it covers TCP, from 6 on abstract sockets and signals; what it never
covers (modes and times of files, other sockets) is refused by inside/seccomp.py.
"""

import ctypes
import os

from kernel import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> how many; later ones: as 5
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15  # rights that a file can have
NETWORK = 0b11  # TCP bind and connect, from ABI 4
SCOPES = 0b11  # abstract sockets and signals, from ABI 6


class Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`."""

    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scope", ctypes.c_uint64),
    )


class Beneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version that the kernel has; 0 = none, or it is switched off."""
    try:
        return syscall(CREATE_RULESET, None, 0, VERSION)
    except OSError:
        return 0


def restrict(readable: list[str], writable: str | None) -> None:
    """Allow reading and mapping below `readable`, everything below `writable`, and no more.

    Raises:
        OSError: the kernel refused; nothing may be run then.
    """
    version = abi()
    files = (1 << FILE_RIGHTS.get(version, 16)) - 1
    asked = Ruleset(files, NETWORK if version >= 4 else 0, SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = syscall(CREATE_RULESET, ctypes.byref(asked), size, 0)
    for path in readable:
        allow(ruleset, path, (EXECUTE | READ_FILE | READ_DIR) & files)
    if writable is not None:
        allow(ruleset, writable, files & ~(1 << 15))  # no ioctl on devices
    syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule; a path that is not there needs none."""
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= ON_FILES
    rule = Beneath(rights, parent)
    syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(parent)
