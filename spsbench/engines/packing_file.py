"""The file of a packing: a page that says how many panels there are, and the panels.

It is never changed but in that page, only replaced or removed, which leaves alone who has it
mapped. Its words are added up when it is first read, after each start of the machine, and whenever
its time of change is not the one that it tells: pages may be lost on their way to the disk. When it
was last used is its time of access.
"""

import json
import mmap
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from spsbench.hardware.cache_home import beside

HEADER = 4096  # bytes: a page
POPULATE_READ = 22  # of madvise(2), since Linux 5.14


class DamagedError(Exception):
    """It is no packing, or not whole."""


def read(path: Path) -> Tensor:
    """The panels, mapped: [bytes] uint8.

    Raises:
        OSError: there is none.
        DamagedError: it is not as it was written.
    """
    with path.open("r+b") as file:
        try:
            return _read(file)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise DamagedError(path) from error


def _read(file: BinaryIO) -> Tensor:
    number = file.fileno()
    head = json.loads(file.read(HEADER).rstrip(b"\0"))
    # A copy on write: what is written here by mistake is not written to the file.
    memory = mmap.mmap(number, 0, access=mmap.ACCESS_COPY)
    with suppress(OSError):  # an older system reads pages as they are used
        memory.madvise(POPULATE_READ)
    panels = torch.frombuffer(memory, dtype=torch.uint8, offset=HEADER)
    if head["bytes"] != len(panels):
        raise ValueError("cut off")
    if head["boot"] != boot() or head["changed"] != os.fstat(number).st_mtime_ns:
        if head["sum of words"] != _sum(panels):
            raise ValueError("pages were lost")
        os.fsync(number)  # from here on they cannot be, as far as the system knows
        os.pwrite(number, _head(head | {"boot": boot()}), 0)
    os.utime(number, ns=(time.time_ns(), head["changed"]))
    return panels


def write(path: Path, panels: Tensor) -> None:
    """Write [bytes] uint8, beside its place first, so that nobody sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    told = {"bytes": len(panels), "sum of words": _sum(panels)}
    with beside(path) as draft, draft.open("wb") as file:
        file.write(_head(told | {"boot": "", "changed": time.time_ns()}))
        file.write(panels.numpy().data)


def _head(told: Mapping[str, object]) -> bytes:
    return json.dumps(told).encode().ljust(HEADER, b"\0")


def _sum(panels: Tensor) -> int:
    return int(panels[: len(panels) // 8 * 8].view(torch.int64).sum())


@cache
def boot() -> str:
    """A name for this start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # another system: no two processes trust each other
        return f"{os.getpid()} {time.time()}"
