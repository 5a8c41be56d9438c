"""Programs that reach for targets on the host: each must be refused in every sandbox.

A probe is harmless where possible; one that ends without an exception has escaped. Probes get the
names of targets: `folder` and `canary` (a folder and a file of this process), `port` (TCP,
listening on the loopback), `socket_path` and `abstract` (UNIX sockets, listening), `pid` (this
process).
"""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.extensions.sandbox.confinement import parse_numbers
from spsbench.extensions.sandbox.levels import processor_family

HELPERS = r'''
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
REFUSALS = errno.EPERM, errno.ENOSYS, errno.EACCES

def call(name, *arguments):
    """A raw system call: what the kernel says of its arguments is no refusal."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(numbers[name]), *words) < 0 and ctypes.get_errno() in REFUSALS:
        raise PermissionError(name)

def function(name, *arguments):
    """A function of the C library, likewise."""
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) < 0 and ctypes.get_errno() in REFUSALS:
        raise PermissionError(name)

def connect(family, kind, address):
    with socket.socket(family, kind) as made:
        made.settimeout(1)
        made.connect(address)
        made.send(b"escaped")
'''

_X86_64 = """
ptrace=101 process_vm_readv=310 bpf=321 perf_event_open=298 io_uring_setup=425 userfaultfd=323
keyctl=250 add_key=248 unshare=272 setns=308 mount=165 pivot_root=155 chroot=161
memfd_create=319 shmget=29 semget=64 msgget=68 mq_open=240 personality=135 open_by_handle_at=304
fanotify_init=300 inotify_init1=294 seccomp=317 pidfd_open=434 pidfd_getfd=438 clone3=435
execveat=322 timer_delete=226 finit_module=313 sethostname=170 syslog=103 setpriority=141
openat2=437 kcmp=312 ioprio_set=251 sched_setaffinity=203 prlimit64=302 tgkill=234 tkill=200
rt_sigqueueinfo=129 landlock_create_ruleset=444 fsopen=430 open_tree=428
"""
_AARCH64 = """
ptrace=117 process_vm_readv=270 bpf=280 perf_event_open=241 userfaultfd=282 keyctl=219
add_key=217 unshare=97 setns=268 mount=40 pivot_root=41 chroot=51 memfd_create=279 shmget=194
semget=190 msgget=186 mq_open=180 personality=92 open_by_handle_at=265 fanotify_init=262
inotify_init1=26 seccomp=277 execveat=281 timer_delete=111 finit_module=273 sethostname=161
syslog=116 setpriority=140 kcmp=272 ioprio_set=30 sched_setaffinity=122 prlimit64=261 tgkill=131
tkill=130 rt_sigqueueinfo=138
"""
NUMBERS = {
    "x86_64": parse_numbers(_X86_64),
    "aarch64": parse_numbers(_X86_64) | parse_numbers(_AARCH64),
}
"""Machine -> name -> number of the system calls of probes."""

FILES = {
    "read a file": "open(canary).read()",
    "read it by another name": "import posix; posix.open(canary, posix.O_RDONLY)",
    "read the password file": "open('/etc/passwd').read()",
    "list a folder": "os.listdir(folder)",
    "list the root": "os.listdir('/'); 1 / ('etc' in os.listdir('/'))",
    "write a file": "open(canary, 'a').close()",
    "make a file": "open(folder + '/made', 'x').close()",
    "make a folder": "os.mkdir(folder + '/made')",
    "make a link": "os.symlink(canary, folder + '/link')",
    "make a pipe": "os.mkfifo(folder + '/pipe')",
    "make a device": "os.mknod(folder + '/device', 0o20666, os.makedev(1, 3))",
    "take a file in by a link": "os.link(canary, 'mine')",
    "delete a file": "os.unlink(folder + '/spare')",
    "rename a file": "os.rename(folder + '/spare', folder + '/moved')",
    "cut a file": "os.truncate(canary, 0)",
    "change a mode": "os.chmod(canary, 0o777)",
    "change an owner": "os.chown(canary, 0, 0)",
    "change a time": "os.utime(canary)",
    "set an attribute": "os.setxattr(canary, 'user.x', b'x')",
    "write beside the interpreter": "import os; open(os.__file__ + 'x', 'x').close()",
    "open a disk": "[os.open('/dev/' + n, os.O_RDONLY) for n in ('sda', 'vda', 'nvme0n1', 'mem')]",
    "open the terminal": "open('/dev/tty')",
    "open without a right": "os.open(canary, os.O_ACCMODE)",
    "open a device without a right": "os.open('/dev/zero', os.O_ACCMODE)",
    "open in the new way": "call('openat2', -100, 0, 0, 0)",
    "watch a file": "call('inotify_init1', 0)",
    "watch a file system": "call('fanotify_init', 0, 0)",
    "open by handle": "call('open_by_handle_at', -1, 0, 0)",
    "mount": "call('mount', 0, 0, 0, 0, 0)",
    "mount in the new way": "call('fsopen', 0, 0)",
    "clone a mount": "call('open_tree', -1, 0, 0)",
    "change the root": "call('chroot', 0)",
    "swap the root": "call('pivot_root', 0, 0)",
}
PROCESSES = {
    "fork": "os.fork() or os._exit(0)",
    "start a shell": "1 / (os.system('true') == 0)",
    "start a program": "import subprocess; subprocess.run(['/bin/true'])",
    "become a program": "os.execv('/bin/true', ['true'])",
    "become an opened program": "call('execveat', -1, 0, 0, 0, 0x1000)",
    "clone": "call('clone3', 0, 0)",
    "see a process": "os.kill(pid, 0)",
    "see all processes": "os.kill(-1, 0)",
    "signal a thread": "call('tgkill', pid, pid, 0)",
    "signal it in the old way": "call('tkill', pid, 0)",
    "queue a signal": "call('rt_sigqueueinfo', pid, 0, 0)",
    "have a signal sent": "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, pid)",
    "hold a process": "call('pidfd_open', pid, 0)",
    "take a descriptor": "call('pidfd_getfd', 0, 0, 0)",
    "trace a process": "call('ptrace', 0x4206, pid, 0, 0)",
    "read its memory": "call('process_vm_readv', pid, 0, 0, 0, 0, 0)",
    "compare processes": "call('kcmp', pid, pid, 0, 0, 0)",
    "slow a process": "call('setpriority', 0, pid, 19)",
    "starve its disk": "call('ioprio_set', 1, pid, 0)",
    "move a process": "call('sched_setaffinity', pid, 0, 0)",
    "read its limits": "import resource; resource.prlimit(pid, resource.RLIMIT_CPU)",
    "open its memory": "open(f'/proc/{pid}/mem', 'rb')",
    "read its environment": "open(f'/proc/{pid}/environ', 'rb').read()",
    "read the first environment": "open('/proc/1/environ', 'rb').read()",
    "list processes": "1 / bool([n for n in os.listdir('/proc') if n.isdigit()])",
}
NETWORK = {
    "connect": "connect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', port))",
    "listen": "socket.socket().bind(('127.0.0.1', 0))",
    "send a datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "send by IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "ask for a name": "socket.getaddrinfo('localhost', port)[0]; socket.socket()",
    "ask for routes": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "send raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "reach the hypervisor": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "connect to a socket file": "connect(socket.AF_UNIX, socket.SOCK_STREAM, socket_path)",
    "connect to a name": "connect(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + abstract)",
    "turn a pair outward": "socket.socketpair(type=socket.SOCK_DGRAM)[0].connect(socket_path)",
    "send out of a pair": "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', socket_path)",
}
KERNEL = {
    "new namespaces": "call('unshare', 0x10000000)",
    "another's namespace": "call('setns', -1, 0)",
    "where cores go": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'r+')",
    "kernel log": "call('syslog', 10, 0, 0)",
    "kernel modules": "call('finit_module', -1, 0, 0)",
    "kernel programs": "call('bpf', 0, 0, 0)",
    "performance events": "call('perf_event_open', 0, 0, -1, -1, 0)",
    "io_uring": "call('io_uring_setup', 1, 0)",
    "page faults": "call('userfaultfd', 0)",
    "keys": "call('keyctl', 0, -3, 0)",
    "more keys": "call('add_key', 0, 0, 0, 0, 0)",
    "uncounted memory": "call('memfd_create', 0, 0)",
    "shared memory": "call('shmget', 0, 4096, 0o1600)",
    "semaphores": "call('semget', 0, 1, 0o1600)",
    "messages": "call('msgget', 0, 0o1600)",
    "message queues": "call('mq_open', 0, 0, 0, 0)",
    "personality": "call('personality', 0xffffffff)",
    "host name": "call('sethostname', 0, 0)",
    "its own filter": "call('seccomp', 1, 0, 0)",
    "its own Landlock": "call('landlock_create_ruleset', 0, 0, 1)",
    "outlive the runner": "function('prctl', 1, 0, 0, 0, 0)",
    "disarm the timer": "call('timer_delete', 0)",
    "raise a limit": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9**9, 9**9))",
    "type into a terminal": "import fcntl; fcntl.ioctl(1, 0x5412, b'x')",
    "have input signalled": "import fcntl; fcntl.ioctl(1, 0x8901, (1).to_bytes(4, 'little'))",
    "see our environment": "1 / bool(os.environ)",
}
PROBES = {**FILES, **PROCESSES, **NETWORK, **KERNEL}
"""Probes: name -> program."""


TRY = """
opened, given = [], dict(globals())
exec(helpers, given)

for name, probe in probes.items():
    try:
        exec(probe, dict(given))
    except BaseException:
        continue
    opened.append(name)
if opened:
    raise RuntimeError(", ".join(opened))
"""


def program() -> str:
    """All probes as one program, which passes where each is refused."""
    values = {"numbers": NUMBERS[processor_family()], "helpers": HELPERS, "probes": PROBES}
    return "\n".join([*(f"{name} = {value!r}" for name, value in values.items()), TRY])


CONTENT = "canary"


class Host(NamedTuple):
    """Targets outside the sandbox, and the record of those reached."""

    names: dict[str, Any]
    reached: list[str]  # filled at the end of the context


@contextmanager
def host() -> Iterator[Host]:
    """Make the targets, and afterwards find which of them were reached."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sps-probes-")))
        folder.chmod(0o777)  # the mode alone must not be what stops an unprivileged user
        for name in ("canary", "spare"):
            (folder / name).write_text(CONTENT, encoding="ascii")
            (folder / name).chmod(0o666)
        listening = {
            "TCP": stack.enter_context(_listening(socket.AF_INET, ("127.0.0.1", 0))),
            "a socket file": stack.enter_context(_listening(socket.AF_UNIX, str(folder / "s"))),
        }
        abstract = f"sps-{folder.name}"
        listening["a socket's name"] = stack.enter_context(
            _listening(socket.AF_UNIX, f"\0{abstract}")
        )
        names = {
            "folder": str(folder),
            "canary": str(folder / "canary"),
            "port": listening["TCP"].getsockname()[1],
            "socket_path": str(folder / "s"),
            "abstract": abstract,
            "pid": os.getpid(),
        }
        before = _state(folder)
        found = Host(names, [])
        yield found
        if _state(folder) != before:
            found.reached.append("files")
        found.reached.extend(name for name, one in listening.items() if _called(one))


def _listening(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.bind(address)
    made.listen()
    made.setblocking(False)
    return made


def _called(listening: socket.socket) -> bool:
    with suppress(BlockingIOError):
        listening.accept()[0].close()
        return True
    return False


def _state(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in folder.iterdir():
        kept = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path.name] = (kept.st_mode, kept.st_uid, kept.st_mtime_ns, kept.st_nlink, content)
    return found
