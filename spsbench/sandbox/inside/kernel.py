"""libc's `syscall` and `prctl`, with errors raised."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_NO_NEW_PRIVS = 38


def syscall(number: int, *values: object) -> int:
    """A system call by number.

    Raises:
        OSError: it failed.
    """
    return _checked(_libc.syscall(ctypes.c_long(number), *map(_wide, values)))


def prctl(option: int, *values: object) -> int:
    """`prctl(2)`.

    Raises:
        OSError: it failed.
    """
    return _checked(_libc.prctl(ctypes.c_int(option), *map(_wide, values)))


def _wide(value: object) -> object:
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
