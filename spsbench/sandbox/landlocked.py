"""Landlock and seccomp alone: for machines and containers where namespaces are not to be had."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from spsbench.sandbox.interpreter import (
    FLAGS,
    INSIDE,
    NOBODY,
    everyone_may_read,
    libraries,
    python,
)
from spsbench.sandbox.level import Start
from spsbench.sandbox.scratch import new_scratch

LEAST = 4  # Landlock's ABI that holds TCP


class Landlocked:
    """What is left to a program is stat() of paths that it can guess."""

    name = "landlock"

    def missing(self) -> str | None:
        """Whether this is a Linux whose system calls we know; the kernel is asked by the probe."""
        machine = platform.machine()
        if platform.system() != "Linux" or machine not in ("x86_64", "aarch64"):
            return f"{platform.system()} on {machine}"
        version = _abi()
        return None if version >= LEAST else f"ABI {version}, expected {LEAST} or more"

    def files(self) -> list[str]:
        """It rests on the kernel alone."""
        return []

    def flags(self) -> list[str]:
        """The interpreter's flags, and who it runs as."""
        return [*FLAGS, "seccomp", f"uid={os.getuid() if self._uid() is None else NOBODY}"]

    @contextmanager
    def start(self) -> Iterator[Start]:
        """In a scratch folder of the system's temporary place; root becomes nobody if it can."""
        uid = self._uid()
        scratch = new_scratch()
        try:
            if uid is not None:
                os.chown(scratch, uid, uid)
            order = {
                "confined": True,
                "landlock": True,
                "readable": [*libraries(), str(INSIDE)],
                "writable": scratch,
                "uid": uid,
                "parent": os.getpid(),
            }
            runner = str(INSIDE / "runner.py")
            yield Start([python(), *FLAGS, runner], scratch, order)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _uid(self) -> int | None:
        """Whom root becomes; None = nobody else."""
        return NOBODY if os.getuid() == 0 and everyone_may_read() else None


def _abi() -> int:
    """Landlock's version; 0 = none."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    found = libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, int(found))
