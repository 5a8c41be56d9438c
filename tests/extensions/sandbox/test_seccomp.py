"""The filter, run by a small machine for classic BPF: its answer to each call, on both machines."""

import errno
import re
import struct
from pathlib import Path

import pytest

from spsbench.extensions.sandbox import confinement
from spsbench.extensions.sandbox.confinement import ALLOW, ERROR, KILL, build_filter
from tests.extensions.sandbox import probes

MACHINES = ("x86_64", "aarch64")
EPERM, ENOSYS = ERROR | errno.EPERM, ERROR | errno.ENOSYS
PID = 4321
HIGH = 1 << 32
HERE = HIGH - 100  # AT_FDCWD


def ask(machine, number, *arguments, audit=None):
    """What the kernel is told."""
    code, places = build_filter(machine)
    content = bytearray(code)
    for place in places:
        content[place : place + 4] = PID.to_bytes(4, "little")
    words = [*arguments, *[0] * 6][:6]
    data = struct.pack("<IIQ6Q", number, audit or confinement.AUDIT[machine], 0, *words)
    steps = list(struct.iter_unpack("=HBBI", bytes(content)))
    at = accumulator = 0
    while True:
        operation, hit, miss, value = steps[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x15:
            at += hit if accumulator == value else miss
        else:
            assert operation == 0x06
            return value


def named(machine, name, *arguments):
    return ask(machine, confinement.ALLOWED[machine][name], *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_allowed_or_refused(machine):
    """Of 600 numbers and 600 of x32, only those in the table are ever allowed."""
    known = set(confinement.ALLOWED[machine].values())
    assert len(known) == len(confinement.ALLOWED[machine])
    for number in range(600):
        if number not in known:
            assert ask(machine, number) == EPERM, number
        assert ask(machine, number | 0x40000000) == EPERM
    for name in ("read", "write", "mmap", "openat", "exit_group", "futex"):
        assert named(machine, name) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_another_convention_ends_the_process(machine):
    assert ask(machine, 1, audit=0x40000003) == KILL  # i386
    other = MACHINES[1 - MACHINES.index(machine)]
    assert ask(machine, 1, audit=confinement.AUDIT[other]) == KILL


THREAD = 0x3D0F00  # what glibc asks for
CASES = [
    ("clone", (THREAD,), ALLOW),
    ("clone", (17,), EPERM),  # fork
    ("clone", (0x4111,), EPERM),  # vfork
    ("clone", (THREAD | 0x10000000,), EPERM),  # in a user namespace
    ("clone", (THREAD | 0x80,), EPERM),  # in a time namespace
    ("clone", (THREAD | HIGH,), EPERM),
    ("clone3", (0,), ENOSYS),
    ("openat", (HERE, 0x7FFF, 0), ALLOW),
    ("openat", (HERE, 0x7FFF, 0o2000001), ALLOW),
    ("openat", (HERE, 0x7FFF, 0o2000002), ALLOW),
    ("openat", (HERE, 0x7FFF, 0o2000003), EPERM),  # neither to read nor to write
    ("openat", (HERE, 0x7FFF, HIGH | 3), EPERM),
    ("openat2", (HERE, 0x7FFF, 0x7FFF, 24), ENOSYS),
    ("kill", (PID, 9), ALLOW),
    ("kill", (PID + 1, 9), EPERM),
    ("kill", (0, 9), EPERM),
    ("kill", (0xFFFFFFFF, 9), EPERM),
    ("tgkill", (PID, 99, 6), ALLOW),
    ("tgkill", (PID - 1, 99, 6), EPERM),
    ("fcntl", (3, 1), ALLOW),
    ("fcntl", (3, 8, PID), EPERM),  # SETOWN
    ("fcntl", (3, 15), EPERM),  # SETOWN_EX
    ("fcntl", (3, 1031), EPERM),  # SETPIPE_SZ
    ("ioctl", (1, 0x5401), ALLOW),
    ("ioctl", (1, 0x5412), EPERM),  # TIOCSTI
    ("ioctl", (1, 0x8901), EPERM),  # FIOSETOWN
    ("ioctl", (1, 0x541C), EPERM),  # TIOCLINUX
    ("prctl", (15,), ALLOW),  # a thread's name
    ("prctl", (1, 0), EPERM),  # PDEATHSIG
    ("prctl", (4, 1), EPERM),  # DUMPABLE
    ("prctl", (22, 2), EPERM),  # SECCOMP
    ("prlimit64", (0, 9, 0, 0x7FFF), ALLOW),
    ("prlimit64", (0, 9, 0x7FFF), EPERM),
    ("prlimit64", (0, 9, HIGH), EPERM),
    ("prlimit64", (PID, 9, 0), EPERM),
    ("socketpair", (1, 1), ALLOW),
    ("socketpair", (1, 1 | 0o2004000), ALLOW),
    ("socketpair", (1, 2), EPERM),  # datagrams
    ("socketpair", (2, 1), EPERM),
    ("sendto", (3, 0, 0, 0, 0), ALLOW),
    ("sendto", (3, 0, 0, 0, 0x7FFF), EPERM),
    ("sendto", (3, 0, 0, 0, HIGH), EPERM),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "arguments", "answer"), CASES)
def test_conditions(machine, name, arguments, answer):
    assert named(machine, name, *arguments) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_probed_calls_are_refused(machine):
    conditional = {"clone3", "openat2", "prlimit64", "tgkill"}
    for name, number in probes.NUMBERS[machine].items():
        if name not in conditional:
            assert ask(machine, number, 1, 1, 1, 1, 1, 1) == EPERM, name


TABLES = (confinement.ALLOWED, probes.NUMBERS, confinement.STARTUP_CALLS, confinement.JAIL)
INCLUDE = Path("/usr/include")
HEADERS = {
    "x86_64": (INCLUDE / "x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
    "aarch64": (INCLUDE / "asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel(machine):
    header, pattern = HEADERS[machine]
    if not header.exists():
        pytest.skip("needs the kernel's headers")
    known = dict(re.findall(pattern, header.read_text()))
    known["newfstatat"] = known.get("newfstatat") or known.pop("fstatat")
    for table in TABLES:
        for name, number in table[machine].items():
            assert int(known.get(name, number)) == number, name
    assert known.keys() >= confinement.ALLOWED[machine].keys() - {"futex_waitv"}
