"""Runs a command on a kernel that seems to have no Landlock: its calls answer ENOSYS."""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, GREATER, RETURN = 0x20, 0x15, 0x35, 0x06
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
LANDLOCK = 444, 446
ENOSYS, ALLOW = 0x00050000 | 38, 0x7FFF0000


def mask() -> None:
    steps = (
        (LOAD, 0, 0, 0),
        (GREATER, 0, 2, LANDLOCK[0]),  # below: allowed
        (GREATER, 1, 0, LANDLOCK[1] + 1),  # above: allowed
        (RETURN, 0, 0, ENOSYS),
        (RETURN, 0, 0, ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), ctypes.addressof(code))
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    mask()
    os.execvp(sys.argv[1], sys.argv[1:])
