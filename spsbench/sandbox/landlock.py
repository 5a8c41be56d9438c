"""Landlock (linux/landlock.h): which files a process may still open, and no network.

What it does not govern, the filter of system calls refuses. The metadata of files stays visible.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from spsbench.sandbox.syscalls import LANDLOCK

FULL = 4  # the first ABI that governs TCP; below it, Landlock needs a network namespace beside it

READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
FS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> kinds of access to files that it knows
EXECUTE, MAKE_CHAR, MAKE_SOCKET, MAKE_FIFO, MAKE_BLOCK, IOCTL = 0, 6, 9, 10, 11, 15
NEVER = (EXECUTE, MAKE_CHAR, MAKE_SOCKET, MAKE_FIFO, MAKE_BLOCK, IOCTL)
TCP = 0b11  # bind, connect
SCOPES = 0b11  # abstract UNIX sockets, signals


class Rules(NamedTuple):
    """What the jail hands to the kernel."""

    attributes: bytes  # struct landlock_ruleset_attr
    rules: tuple[tuple[bytes, int], ...]  # path, rights

    def plain(self) -> dict[str, Any]:
        """As the jail takes it."""
        return {"attributes": self.attributes, "rules": self.rules, "calls": LANDLOCK}


def abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none, or it is off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(LANDLOCK["create_ruleset"], None, ctypes.c_size_t(0), 1)))


def rules(version: int, read: Iterable[str], work: str | None = None) -> Rules:
    """Rules of ABI `version`: `read` may be read, the folder `work` also written; nothing else.

    Of `read`, what is not there is left out. `work` is there inside the sandbox only.
    """
    known = (1 << FS[min(version, max(FS))]) - 1
    attributes = struct.pack("=Q", known)
    if version >= 4:
        attributes += struct.pack("=Q", TCP)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPES)
    there = [path for path in read if os.path.exists(path)]
    made = [(path, READ_FILE | (READ_DIR if os.path.isdir(path) else 0)) for path in there]
    made.append((os.devnull, READ_FILE | WRITE_FILE))
    if work is not None:
        made.append((work, known & ~sum(1 << bit for bit in NEVER)))
    return Rules(attributes, tuple((os.fsencode(path), rights) for path, rights in made))
