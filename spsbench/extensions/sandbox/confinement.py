"""The confinement of a program by the kernel: a filter of system calls, Landlock, and checks.

The filter is classic BPF (linux/seccomp.h, linux/filter.h) and an allow list: a call that is not in
it gets EPERM, a call by another architecture's convention ends the process. Landlock
(linux/landlock.h) says which files may be opened, and forbids the network; the metadata of files
stays visible. At every start the jail tries a few calls that must be refused, since a filter around
the sandbox may answer a call without carrying it out.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

_X86_64 = """
read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 preadv2=327
pwritev2=328 close=3 close_range=436 lseek=8 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 poll=7
ppoll=271 select=23 pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232
epoll_pwait=281 epoll_pwait2=441 eventfd2=290 timerfd_create=283 timerfd_settime=286
timerfd_gettime=287 open=2 openat=257 openat2=437 creat=85 stat=4 lstat=6 fstat=5 newfstatat=262
statx=332 statfs=137 fstatfs=138 access=21 faccessat=269 faccessat2=439 readlink=89
readlinkat=267 getdents64=217 getcwd=79 chdir=80 fchdir=81 mkdir=83 mkdirat=258 rmdir=84
unlink=87 unlinkat=263 rename=82 renameat=264 renameat2=316 link=86 linkat=265 symlink=88
symlinkat=266 umask=95 truncate=76 ftruncate=77 fallocate=285 fsync=74 fdatasync=75 flock=73
fadvise64=221 sendfile=40 copy_file_range=326 mmap=9 munmap=11 mremap=25 mprotect=10 madvise=28
mincore=27 msync=26 brk=12 membarrier=324 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15
rt_sigpending=127 rt_sigsuspend=130 rt_sigtimedwait=128 sigaltstack=131 pause=34 alarm=37
getitimer=36 setitimer=38 restart_syscall=219 futex=202 futex_waitv=449 set_robust_list=273
set_tid_address=218 rseq=334 sched_yield=24 sched_getaffinity=204 getcpu=309 gettid=186
getpid=39 getppid=110 getpgid=121 getpgrp=111 getsid=124 getuid=102 geteuid=107 getgid=104
getegid=108 getgroups=115 getresuid=118 getresgid=120 getpriority=140 getrlimit=97 getrusage=98
times=100 sysinfo=99 uname=63 time=201 gettimeofday=96 clock_gettime=228 clock_getres=229
clock_nanosleep=230 nanosleep=35 getrandom=318 arch_prctl=158 wait4=61 waitid=247 exit=60
exit_group=231 shutdown=48 recvfrom=45 getsockname=51 getpeername=52 getsockopt=55 clone=56
clone3=435 fcntl=72 ioctl=16 kill=62 tgkill=234 prctl=157 prlimit64=302 socketpair=53 sendto=44
"""

_AARCH64 = """
read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 preadv2=286
pwritev2=287 close=57 close_range=436 lseek=62 dup=23 dup3=24 pipe2=59 ppoll=73 pselect6=72
epoll_create1=20 epoll_ctl=21 epoll_pwait=22 epoll_pwait2=441 eventfd2=19 timerfd_create=85
timerfd_settime=86 timerfd_gettime=87 openat=56 openat2=437 fstat=80 newfstatat=79 statx=291
statfs=43 fstatfs=44 faccessat=48 faccessat2=439 readlinkat=78 getdents64=61 getcwd=17 chdir=49
fchdir=50 mkdirat=34 unlinkat=35 renameat=38 renameat2=276 linkat=37 symlinkat=36 umask=166
truncate=45 ftruncate=46 fallocate=47 fsync=82 fdatasync=83 flock=32 fadvise64=223 sendfile=71
copy_file_range=285 mmap=222 munmap=215 mremap=216 mprotect=226 madvise=233 mincore=232
msync=227 brk=214 membarrier=283 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139
rt_sigpending=136 rt_sigsuspend=133 rt_sigtimedwait=137 sigaltstack=132 getitimer=102
setitimer=103 restart_syscall=128 futex=98 futex_waitv=449 set_robust_list=99 set_tid_address=96
rseq=293 sched_yield=124 sched_getaffinity=123 getcpu=168 gettid=178 getpid=172 getppid=173
getpgid=155 getsid=156 getuid=174 geteuid=175 getgid=176 getegid=177 getgroups=158 getresuid=148
getresgid=150 getpriority=141 getrlimit=163 getrusage=165 times=153 sysinfo=179 uname=160
gettimeofday=169 clock_gettime=113 clock_getres=114 clock_nanosleep=115 nanosleep=101
getrandom=278 wait4=260 waitid=95 exit=93 exit_group=94 shutdown=210 recvfrom=207
getsockname=204 getpeername=205 getsockopt=209 clone=220 clone3=435 fcntl=25 ioctl=29 kill=129
tgkill=131 prctl=167 prlimit64=261 socketpair=199 sendto=206
"""


def parse_numbers(table: str) -> dict[str, int]:
    """Return name -> number of a table such as `read=0 write=1`."""
    return {name: int(number) for name, number in (entry.split("=") for entry in table.split())}


ALLOWED = {"x86_64": parse_numbers(_X86_64), "aarch64": parse_numbers(_AARCH64)}
"""Machine -> name -> number of all allowed calls, some of them with conditions."""

JAIL = {
    "x86_64": parse_numbers("capset=126 capget=125 timer_create=222 timer_settime=223 unshare=272"),
    "aarch64": parse_numbers("capset=91 capget=90 timer_create=107 timer_settime=110 unshare=97"),
}
"""System calls that the jail makes before the filter forbids them."""

LANDLOCK = {"create_ruleset": 444, "add_rule": 445, "restrict_self": 446}
"""Numbers of Landlock's calls, equal on all machines."""

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine -> its number in seccomp (AUDIT_ARCH of linux/audit.h)."""


LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
KILL, ALLOW, ERROR = 0x80000000, 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
SIZE = 8  # bytes of an instruction
ALL_BITS = 0xFFFFFFFF

CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020080  # every kind of namespace
ACCESS = 0b11  # O_ACCMODE: to read, to write, both; 3 opens devices and unreadable files, and asks
MODES = (0, 1, 2)  # Landlock for no right
UNIX, STREAM = 1, 1
SOCKET_FLAGS = 0o2004000  # SOCK_CLOEXEC, SOCK_NONBLOCK
# DUPFD, GETFD, SETFD, GETFL, SETFL, locks, DUPFD_CLOEXEC, GETPIPE_SZ. Not SETOWN: it sends signals.
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Not TIOCSTI, FIOASYNC, FIOSETOWN.
IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
PRCTL = (3, 15, 16)  # GET_DUMPABLE, SET_NAME, GET_NAME


class _Condition(NamedTuple):
    """Half of an argument, masked, is one of `values`; without values, the own process id."""

    argument: int
    values: tuple[int, ...]
    mask: int = ALL_BITS
    upper: bool = False


_NEVER = _Condition(0, (1,), mask=0)  # nothing masked is 0
_OWN_PROCESS = _Condition(0, ())


_CONDITIONS: dict[str, tuple[_Condition, ...]] = {
    "clone": (  # threads
        _Condition(0, (CLONE_THREAD,), mask=CLONE_THREAD | CLONE_NEW),
        _Condition(0, (0,), upper=True),
    ),
    "clone3": (_NEVER,),
    "open": (_Condition(1, MODES, mask=ACCESS),),
    "openat": (_Condition(2, MODES, mask=ACCESS),),
    "openat2": (_NEVER,),  # the mode is in memory that a filter cannot read
    "fcntl": (_Condition(1, FCNTL),),
    "ioctl": (_Condition(1, IOCTL_REQUESTS),),
    "prctl": (_Condition(0, PRCTL),),
    "kill": (_OWN_PROCESS,),
    "tgkill": (_OWN_PROCESS,),
    "prlimit64": (  # to read the process's own limits
        _Condition(0, (0,)),
        _Condition(2, (0,)),
        _Condition(2, (0,), upper=True),
    ),
    "socketpair": (_Condition(0, (UNIX,)), _Condition(1, (STREAM,), mask=ALL_BITS & ~SOCKET_FLAGS)),
    "sendto": (  # to the other end of a socket pair; an address would reach other sockets
        _Condition(4, (0,)),
        _Condition(4, (0,), upper=True),
    ),
}
# Libraries that try these calls first fall back to clone and openat after ENOSYS.
_REFUSALS = dict.fromkeys(("clone3", "openat2"), ERROR | errno.ENOSYS)
_REFUSED = ERROR | errno.EPERM


class _Code:
    """Instructions of a filter under construction."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.own_pid: list[int] = []

    def add(self, code: int, value: int, hit: int = 0, miss: int = 0) -> None:
        """Append an instruction; `hit`, `miss`: instructions that a test jumps over."""
        self.lines.append(struct.pack("=HBBI", code, hit, miss, value))

    def unless(self, number: int, conditions: tuple[_Condition, ...], refusal: int) -> None:
        """Append the block of call `number`: allowed where all conditions hold, else `refusal`.

        `refusal` is what the filter returns, such as ERROR | EPERM. The block is entered with the
        number of the call loaded; another call jumps over it.
        """
        lengths = [1 + (c.mask != ALL_BITS) + max(1, len(c.values)) for c in conditions]
        self.add(EQUAL, number, miss=sum(lengths) + 2)
        ahead = sum(lengths)  # instructions to the end of the conditions
        for condition, length in zip(conditions, lengths, strict=True):
            ahead -= length
            self._test(condition, ahead)
        self.add(RETURN, ALLOW)
        self.add(RETURN, refusal)

    def _test(self, condition: _Condition, ahead: int) -> None:
        """Append the test of a condition: where none of its values is there, jump to the refusal.

        `ahead`: instructions between the test and the two returns, allowed and refused, that end
        the block. For a condition without values, the offset of the own process id is added to
        `own_pid`.
        """
        self.add(LOAD, ARGUMENTS + 8 * condition.argument + 4 * condition.upper)
        if condition.mask != ALL_BITS:
            self.add(AND, condition.mask)
        if not condition.values:
            self.own_pid.append(len(self.lines) * SIZE + 4)
        values = condition.values or (0,)
        for index, value in enumerate(values, start=1):
            left = len(values) - index
            self.add(EQUAL, value, hit=left, miss=0 if left else ahead + 1)


def build_filter(machine: str) -> tuple[bytes, tuple[int, ...]]:
    """Return a BPF program, and the offsets in it where a process writes its own id in four bytes.

    `machine` is as `processor_family` names it. Raises KeyError if its system calls are unknown.
    """
    code = _Code()
    code.add(LOAD, ARCHITECTURE)
    code.add(EQUAL, AUDIT[machine], hit=1)
    code.add(RETURN, KILL)
    code.add(LOAD, NUMBER)
    for name, number in ALLOWED[machine].items():
        code.unless(number, _CONDITIONS.get(name, ()), _REFUSALS.get(name, _REFUSED))
    code.add(RETURN, _REFUSED)
    return b"".join(code.lines), tuple(code.own_pid)


FULL = 4  # the first ABI that governs TCP; below it, Landlock needs a network namespace beside it

READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
FS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> kinds of access to files that it knows
EXECUTE, MAKE_CHAR, MAKE_SOCKET, MAKE_FIFO, MAKE_BLOCK, IOCTL = 0, 6, 9, 10, 11, 15
NEVER = (EXECUTE, MAKE_CHAR, MAKE_SOCKET, MAKE_FIFO, MAKE_BLOCK, IOCTL)
TCP = 0b11  # bind, connect
SCOPES = 0b11  # abstract UNIX sockets, signals


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock; 0 where there is none, or it is off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(LANDLOCK["create_ruleset"], None, ctypes.c_size_t(0), 1)))


def landlock_rules(version: int, read: Iterable[str], work: str | None = None) -> dict[str, Any]:
    """Return rules of ABI `version`: `read` may be read, the folder `work` also written, no more.

    They are the jail's `restrict` arguments: `attributes` (struct landlock_ruleset_attr), `rules`
    (each a path and its rights) and `calls`. /dev/null may be written, too. Missing paths of `read`
    are left out; `work` exists inside the sandbox only.
    """
    every_right = (1 << FS[min(version, max(FS))]) - 1
    attributes = struct.pack("=Q", every_right)
    if version >= 4:
        attributes += struct.pack("=Q", TCP)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPES)
    paths = filter(os.path.exists, read)
    granted = [(path, READ_FILE | (READ_DIR if os.path.isdir(path) else 0)) for path in paths]
    granted.append((os.devnull, READ_FILE | WRITE_FILE))
    if work is not None:
        granted.append((work, every_right & ~sum(1 << bit for bit in NEVER)))
    rules = tuple((os.fsencode(path), rights) for path, rights in granted)
    return {"attributes": attributes, "rules": rules, "calls": LANDLOCK}


STARTUP_CALLS = {
    "x86_64": parse_numbers("openat=257 socket=41 unshare=272 kill=62 execve=59 fchmod=91"),
    "aarch64": parse_numbers("openat=56 socket=198 unshare=97 kill=129 execve=221 fchmod=52"),
}
HERE = -100  # AT_FDCWD
FILE = (errno.EACCES, errno.EPERM, errno.ENOENT)  # refused, or out of sight
CALL = (errno.EPERM, errno.ENOSYS)


RefusedCall = tuple[str, int, tuple[Any, ...], tuple[int, ...]]
"""System call that must be refused: name, number, arguments, and errnos of a refusal."""


def startup_checks(machine: str) -> dict[str, tuple[RefusedCall, ...]]:
    """Return the calls that must be refused, by `landlock` and by `filter`; KeyError: no machine.

    Each call succeeds in an unconfined process, and is harmless.
    """
    number = STARTUP_CALLS[machine]

    def opened(name: str, path: str, flags: int) -> RefusedCall:
        return name, number["openat"], (HERE, os.fsencode(path), flags), FILE

    def called(name: str, call: str, *arguments: Any) -> RefusedCall:
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
