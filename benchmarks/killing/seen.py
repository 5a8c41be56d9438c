"""Processes of one start of a run, as /proc shows them."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "SPS_KILLS"  # a variable in the environment of a command and of all that it starts
OF_RAY = ("raylet/raylet ", "gcs/gcs_server ")
WORKING = ("ray::Post", "spsbench.distributed.child")


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


def workers(mark: str, before: frozenset[int]) -> list[Life]:
    """Those who work for a start."""
    return [life for life in lives(mark, before) if is_worker(life.name)]


def lives(mark: str, before: frozenset[int]) -> list[Life]:
    """All processes of a start but its driver.

    Args:
        before: those that were there before any start: nobody's here, whatever they are called.
    """
    found = []
    for pid in processes():
        try:
            name = name_of(pid)
            if pid not in before and owned(pid, name, mark) and (at := began(pid)):
                found.append(Life(pid, at, name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def is_worker(name: str) -> bool:
    """Whether a process of that name makes records."""
    return name.startswith("worker-") or any(part in name for part in WORKING)


def is_agent(life: Life) -> bool:
    """Whether it is one of Ray's own, which does none of our work."""
    return life.name.startswith("ray::") and not is_worker(life.name)


def owned(pid: int, name: str, mark: str) -> bool:
    """Forks go by their name, commands by their environment; Ray's workers overwrite theirs."""
    if name.startswith("worker-"):
        return name == f"worker-{mark}"
    if name.startswith("ray::"):
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return marked(int(parent), mark)
    return marked(pid, mark) and (is_worker(name) or any(part in name for part in OF_RAY))


def marked(pid: int, mark: str) -> bool:
    """Whether it was started, by whomever, under a command of ours."""
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
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
