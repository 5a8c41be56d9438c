"""Processes of one start of a run, as /proc shows them."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "SPS_KILLS"  # a variable in the environment of a command and of all that it starts
OF_RAY = ("ray::", "raylet", "gcs_server")
WORKING = ("ray::Post", "spsbench.cluster.child")


class Life(NamedTuple):
    """A process; another one that is given its number later is another life."""

    pid: int
    began: str
    name: str

    @property
    def is_there(self) -> bool:
        """Whether it still runs."""
        return began(self.pid) == self.began

    def kill(self) -> None:
        """At once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def workers(mark: str) -> list[Life]:
    """Those who work for a start."""
    return [life for life in lives(mark) if is_worker(life.name)]


def lives(mark: str) -> list[Life]:
    """All processes of a start but its driver."""
    found = []
    for pid in processes():
        try:
            name = name_of(pid)
            if owned(pid, name, mark) and (at := began(pid)):
                found.append(Life(pid, at, name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def is_worker(name: str) -> bool:
    """Whether a process of that name makes records."""
    return name.startswith("worker-") or any(part in name for part in WORKING)


def owned(pid: int, name: str, mark: str) -> bool:
    """Forks go by their name, commands by their environment; those of Ray overwrite theirs."""
    if name == f"worker-{mark}":
        return True
    if name.startswith(OF_RAY) or "/raylet " in name or "/gcs_server " in name:
        return True
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{MARK}={mark}".encode() in environment and is_worker(name)
    return False


def name_of(pid: int) -> str:
    """What it was started as; of a fork, what it calls itself."""
    short = Path(f"/proc/{pid}/comm").read_text().strip()
    if short.startswith("worker-"):
        return short
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def began(pid: int) -> str:
    """When, in ticks; empty: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def processes() -> Iterator[int]:
    """Of this machine."""
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
