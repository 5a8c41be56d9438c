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
from spsbench.tables import read_table

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

HELPERS, *_KINDS = read_table(__file__, "probes.toml").values()
PROBES = {name: program for programs in _KINDS for name, program in programs.items()}
"""Probes: name -> program, which may call the functions of `HELPERS`."""

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
