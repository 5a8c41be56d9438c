"""The Python that runs programs: the base interpreter of this one, with its standard library only.

Bound or allowed at its own path: elsewhere it may load another libpython that lies there.
"""

import os
import sys
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
FLAGS = ("-P", "-s", "-S", "-B")  # no paths of the user or the folder, no site packages, no caches
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # all that a program finds; sets keep their order
NOBODY = 65534


def python() -> str:
    """The interpreter's own file."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def libraries() -> list[str]:
    """What it reads while it runs: its library, and those of the system."""
    system = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache"]
    return [sys.base_prefix, *system]


def everyone_may_read() -> bool:
    """Whether another user can run it, so that root need not be the one who does."""
    library = Path(os.__file__).resolve()
    runner = (INSIDE / "runner.py").resolve()
    needed = [Path(python()), library, runner]
    folders = {parent for path in needed for parent in path.parents}
    readable = all(path.stat().st_mode & 0o004 for path in needed)
    return readable and all(folder.stat().st_mode & 0o001 for folder in folders)
