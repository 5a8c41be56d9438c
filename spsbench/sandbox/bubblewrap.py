"""bubblewrap: namespaces with nothing in them but the interpreter, then Landlock and seccomp.

No /proc (it would show the caller's environment and, to root, writable kernel settings), no /etc,
no network, no home; everything read-only but a small scratch folder in memory.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spsbench.sandbox.interpreter import ENVIRONMENT, FLAGS, INSIDE, libraries, python
from spsbench.sandbox.level import Start

# Each by its name: --unshare-all would go on where a namespace cannot be had.
NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup")
SCRATCH = "/work"
SCRATCH_BYTES = 32 << 20


class Bubblewrap:
    """The strongest level that needs neither root nor a daemon."""

    name = "bwrap"

    def missing(self) -> str | None:
        """Whether `bwrap` is installed."""
        return None if shutil.which("bwrap") else "not installed"

    def files(self) -> list[str]:
        """The program itself."""
        return [os.path.realpath(shutil.which("bwrap") or "")]

    def flags(self) -> list[str]:
        """Its command line, and what holds inside."""
        return [*command()[1:], "landlock", "seccomp"]

    @contextmanager
    def start(self) -> Iterator[Start]:
        """The scratch folder ends with the namespace."""
        order = {
            "confined": True,
            "landlock": True,
            "readable": [*libraries(), "/sbx", "/dev"],
            "writable": SCRATCH,
            "uid": None,
            "parent": None,  # not seen from inside; --die-with-parent does it
        }
        yield Start(command(), "/", order)


def command() -> list[str]:
    """The whole command line."""
    made = [shutil.which("bwrap") or "bwrap"]
    made += [f"--unshare-{name}" for name in NAMESPACES]
    made += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    made += ["--uid", "65534", "--gid", "65534", "--hostname", "sps", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        made += ["--setenv", name, value]
    made += ["--ro-bind", "/usr", "/usr", *system_folders()]
    if not sys.base_prefix.startswith("/usr"):
        made += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    made += ["--ro-bind", str(INSIDE), "/sbx", "--dev", "/dev", "--remount-ro", "/dev"]
    made += ["--size", str(SCRATCH_BYTES), "--tmpfs", SCRATCH, "--chdir", SCRATCH]
    made += ["--remount-ro", "/"]
    return [*made, "--", python(), *FLAGS, "/sbx/runner.py"]


def system_folders() -> list[str]:
    """/lib and the like, as links where they are links."""
    made: list[str] = []
    for name in ("/bin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            made += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name) and name != "/bin":
            made += ["--ro-bind", name, name]
    return made
