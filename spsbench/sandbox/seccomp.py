"""The filter of system calls, as classic BPF (linux/seccomp.h, linux/filter.h): allowed, or EPERM.

An allow list: what nobody thought of is refused. A call by another architecture's convention ends
the process at once.
"""

import errno
import struct
from typing import NamedTuple

from spsbench.sandbox.syscalls import AUDIT, NUMBERS

LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
KILL, ALLOW, ERROR = 0x80000000, 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
SIZE = 8  # bytes of an instruction
ALL_BITS = 0xFFFFFFFF

CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020080  # every kind of namespace
ACCESS = 0b11  # O_ACCMODE: to read, to write, both
UNIX, STREAM = 1, 1
SOCKET_FLAGS = 0o2004000  # SOCK_CLOEXEC, SOCK_NONBLOCK
# DUPFD, GETFD, SETFD, GETFL, SETFL, locks, DUPFD_CLOEXEC, GETPIPE_SZ. Not SETOWN: it sends signals.
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Not TIOCSTI, FIOASYNC, FIOSETOWN.
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
PRCTL = (3, 15, 16)  # GET_DUMPABLE, SET_NAME, GET_NAME


class Filter(NamedTuple):
    """A program for the kernel."""

    code: bytes
    own_pid: tuple[int, ...]  # byte offsets at which the process writes its own id


class _Condition(NamedTuple):
    """Half of an argument, masked, is one of `values`; without values, the own process id."""

    argument: int
    values: tuple[int, ...]
    mask: int = ALL_BITS
    upper: bool = False


_NEVER = _Condition(0, (1,), mask=0)  # nothing masked is 0
_OWN_PROCESS = _Condition(0, ())


def _with_a_right(argument: int) -> _Condition:
    """Not mode 3, which opens devices and unreadable files and asks Landlock for nothing."""
    return _Condition(argument, (0, 1, 2), mask=ACCESS)


_CONDITIONS: dict[str, tuple[_Condition, ...]] = {
    "clone": (  # threads
        _Condition(0, (CLONE_THREAD,), mask=CLONE_THREAD | CLONE_NEW),
        _Condition(0, (0,), upper=True),
    ),
    "clone3": (_NEVER,),
    "open": (_with_a_right(1),),
    "openat": (_with_a_right(2),),
    "openat2": (_NEVER,),  # its mode is where a filter cannot look
    "fcntl": (_Condition(1, FCNTL),),
    "ioctl": (_Condition(1, IOCTL),),
    "prctl": (_Condition(0, PRCTL),),
    "kill": (_OWN_PROCESS,),
    "tgkill": (_OWN_PROCESS,),
    "prlimit64": (  # to read one's own
        _Condition(0, (0,)),
        _Condition(2, (0,)),
        _Condition(2, (0,), upper=True),
    ),
    "socketpair": (
        _Condition(0, (UNIX,)),
        _Condition(1, (STREAM,), mask=ALL_BITS & ~SOCKET_FLAGS),
    ),
    "sendto": (  # to the other end of a pair: an address would reach the sockets of others
        _Condition(4, (0,)),
        _Condition(4, (0,), upper=True),
    ),
}
# Who asks for these first falls back to clone and openat when told that there are none.
_REFUSALS = dict.fromkeys(("clone3", "openat2"), ERROR | errno.ENOSYS)
_REFUSED = ERROR | errno.EPERM


class _Code:
    """Instructions as they are put together."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.own_pid: list[int] = []

    def add(self, code: int, value: int, hit: int = 0, miss: int = 0) -> None:
        self.lines.append(struct.pack("=HBBI", code, hit, miss, value))

    def unless(self, number: int, conditions: tuple[_Condition, ...], refusal: int) -> None:
        """The block of one call: entered with its number loaded, left only by a return."""
        lengths = [1 + (c.mask != ALL_BITS) + max(1, len(c.values)) for c in conditions]
        self.add(EQUAL, number, miss=sum(lengths) + 2)
        ahead = sum(lengths)  # instructions to the end of the conditions
        for condition, length in zip(conditions, lengths, strict=True):
            ahead -= length
            self._test(condition, ahead)
        self.add(RETURN, ALLOW)
        self.add(RETURN, refusal)

    def _test(self, condition: _Condition, ahead: int) -> None:
        """Go on when it holds, else to the refusal, `ahead` instructions and one return further."""
        self.add(LOAD, ARGUMENTS + 8 * condition.argument + 4 * condition.upper)
        if condition.mask != ALL_BITS:
            self.add(AND, condition.mask)
        if not condition.values:
            self.own_pid.append(len(self.lines) * SIZE + 4)
        values = condition.values or (0,)
        for index, value in enumerate(values, start=1):
            left = len(values) - index
            self.add(EQUAL, value, hit=left, miss=0 if left else ahead + 1)


def build(machine: str) -> Filter:
    """The filter for `machine`.

    Raises:
        KeyError: its system calls are not known here.
    """
    code = _Code()
    code.add(LOAD, ARCHITECTURE)
    code.add(EQUAL, AUDIT[machine], hit=1)
    code.add(RETURN, KILL)
    code.add(LOAD, NUMBER)
    for name, number in NUMBERS[machine].items():
        code.unless(number, _CONDITIONS.get(name, ()), _REFUSALS.get(name, _REFUSED))
    code.add(RETURN, _REFUSED)
    return Filter(b"".join(code.lines), tuple(code.own_pid))
