"""Runs a command on a kernel that seems to have no Landlock: its calls answer ENOSYS.

With `--pretend N,N`, behind a filter under which those calls answer 0 and do nothing instead; with
`--pretend -`, behind a filter that does nothing at all.
"""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
LANDLOCK = 444, 445, 446
ENOSYS, DONE, ALLOW = 0x00050000 | 38, 0x00050000, 0x7FFF0000


def mask(calls: tuple[int, ...], answer: int) -> None:
    steps = [(LOAD, 0, 0, 0)]
    for call in calls:
        steps += [(EQUAL, 0, 1, call), (RETURN, 0, 0, answer)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), ctypes.addressof(code))
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    command = sys.argv[1:]
    if command[0] == "--pretend":
        pretended = tuple(int(call) for call in command[1].split(",") if call != "-")
        mask(pretended, DONE)
        del command[:2]
    else:
        mask(LANDLOCK, ENOSYS)
    os.execvp(command[0], command)
