"""Seccomp: a filter that refuses the system calls of inside/syscalls.py with EPERM.

Classic BPF over `struct seccomp_data`: number at byte 0, architecture at 4, arguments from 16 on,
eight bytes each. A foreign architecture kills: its numbers mean other calls.
"""

import ctypes
import errno
import os
import struct

from kernel import PR_SET_SECCOMP, prctl
from syscalls import AUDIT, DENIED, GUARDED

LOAD, JUMP_EQUAL, JUMP_SET, JUMP_ABOVE, AND, RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE = 0, 4
X32 = 0x40000000
CLONE_THREAD = 0x10000
SOCK_STREAM, SOCK_TYPE = 1, 0xF
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
FILTER = 2  # SECCOMP_MODE_FILTER

Instruction = tuple[int, int, int, int]  # code, jump if true, if false, value


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(machine: str) -> None:
    """Apply the filter to every thread-to-be of this process; it cannot be taken off.

    Raises:
        KeyError: no table for this architecture.
        OSError: the kernel refused; nothing may be run then.
    """
    code = b"".join(struct.pack("<HBBI", *one) for one in program(machine, os.getpid()))
    prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(Program(len(code) // 8, code)), 0, 0)


def program(machine: str, pid: int) -> list[Instruction]:
    """The filter for a process that is `pid`."""
    guarded = GUARDED[machine]
    made = [
        load(ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, AUDIT[machine]),
        result(KILL),
        load(NUMBER),
        (JUMP_ABOVE, 0, 1, X32),
        result(REFUSE | errno.EPERM),
        *when(guarded["clone3"], [result(REFUSE | errno.ENOSYS)]),  # libc then uses clone
        *when(guarded["clone"], if_set(low(0), CLONE_THREAD)),
        *when(guarded["kill"], if_equal(low(0), pid)),
        *when(guarded["tgkill"], if_equal(low(0), pid)),
        *when(guarded["prlimit64"], if_equal(low(0), 0, pid)),
        *when(guarded["socketpair"], if_equal(low(1), SOCK_STREAM, mask=SOCK_TYPE)),
        *when(guarded["ioctl"], unless_equal(low(1), TIOCSTI, TIOCLINUX)),
        *when(guarded["sendto"], if_zero(4)),  # no address: only what is connected already
    ]
    for number in DENIED[machine].values():
        made += when(number, [result(REFUSE | errno.EPERM)])
    return [*made, result(ALLOW)]


def load(offset: int) -> Instruction:
    """Four bytes of the call's data."""
    return (LOAD, 0, 0, offset)


def low(argument: int) -> int:
    """Where the lower half of an argument is, little-endian."""
    return 16 + 8 * argument


def result(value: int) -> Instruction:
    """The end: what happens to the call."""
    return (RETURN, 0, 0, value)


def when(number: int, body: list[Instruction]) -> list[Instruction]:
    """`body`, which ends by itself, if the call is `number`."""
    return [(JUMP_EQUAL, 0, len(body), number), *body]


def if_set(offset: int, bits: int) -> list[Instruction]:
    """Allow if any of `bits` is set."""
    return [load(offset), (JUMP_SET, 0, 1, bits), result(ALLOW), result(REFUSE | errno.EPERM)]


def if_equal(offset: int, *values: int, mask: int = 0xFFFFFFFF) -> list[Instruction]:
    """Allow if the argument is one of `values`."""
    made = [load(offset), (AND, 0, 0, mask)]
    for value in values:
        made += [(JUMP_EQUAL, 0, 1, value), result(ALLOW)]
    return [*made, result(REFUSE | errno.EPERM)]


def unless_equal(offset: int, *values: int) -> list[Instruction]:
    """Refuse if the argument is one of `values`."""
    made = [load(offset)]
    for value in values:
        made += [(JUMP_EQUAL, 0, 1, value), result(REFUSE | errno.EPERM)]
    return [*made, result(ALLOW)]


def if_zero(argument: int) -> list[Instruction]:
    """Allow if both halves of an argument are 0."""
    refused = result(REFUSE | errno.EPERM)
    return [
        *(load(low(argument)), (JUMP_EQUAL, 1, 0, 0), refused),
        *(load(low(argument) + 4), (JUMP_EQUAL, 1, 0, 0), refused),
        result(ALLOW),
    ]
