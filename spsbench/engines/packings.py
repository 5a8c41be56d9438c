"""Panels of models kept on disk: the next load maps them, and lays nothing out.

Pages of a file that the system holds in memory are not cleared, copied or read before their use,
and all processes have them together. A packing is named by what it is made of: files of weights as
they are now, layouts, the code that lays out.
"""

import hashlib
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.engines import packing_file
from spsbench.engines.kernels.native import library
from spsbench.engines.origins import are_fresh
from spsbench.engines.packing import panels, tuning_cache
from spsbench.engines.packing.memory import Room
from spsbench.engines.packing.trials import threads, typical
from spsbench.engines.packing_file import DamagedError
from spsbench.engines.verdict import sources
from spsbench.hardware.cache_home import own_folder
from spsbench.hardware.disks import allowed, is_local

LEAST = 64 * 2**20  # bytes: less is laid out in no time
SPARE = 4 * 10**9  # bytes of the disk that are left to others, beside as much as a packing takes
PART = 256 * 2**20  # bytes
WIDTH = 1024  # inputs
SLOWER = 1.05
SPEED = "packings"  # what `kept` calls whether mapped panels are read as fast as others
IN_USE = 24 * 3600.0  # seconds since it was last used
LEFT = 3600.0  # seconds, after which an unfinished file is nobody's


class Packing(NamedTuple):
    """Panels of one model, what they are called on disk, and of what they are made.

    Without a name they cannot be had again.
    """

    name: str | None = None
    room: Room | None = None
    origins: frozenset[str] = frozenset()


def name_of(parts: Sequence[tuple[str | None, str]]) -> str | None:
    """Of panels in their order: the origin of each, and how it is laid out.

    None: there are none, or one of unknown origin.
    """
    if not parts or any(origin is None for origin, _ in parts):
        return None
    told = "".join(f"{origin} {how}\0" for origin, how in parts)
    return hashlib.sha256(_code() + told.encode()).hexdigest()[:24]


@cache
def _code() -> bytes:
    """A digest of what lays panels out: this room and the kernels, compiled as they are here."""
    kernels = library()
    return sources() + (b"" if isinstance(kernels, str) else Path(kernels._name).stem.encode())


def recall(name: str | None) -> Room | None:
    """A kept packing, in memory; None: there is none, or it was damaged and is none now."""
    path = None if name is None or not allowed() else _path(name)
    if path is None:
        return None
    try:
        return Room(packing_file.read(path), written=True)
    except OSError:
        return None
    except DamagedError:
        path.unlink(missing_ok=True)
        return None


def keep(packing: Packing) -> None:
    """Keep what was laid out, if it is worth the disk; the next load is quicker then.

    What was kept by this name is replaced: it was not taken for what it should be.
    """
    path = None if packing.name is None else _path(packing.name)
    if path is None:
        return
    with suppress(OSError, DamagedError):  # it will be laid out again
        if _is_worth_it(packing, path):
            own = packing.room.taken  # type: ignore[union-attr]
            packing_file.write(path, own)
            if tuning_cache.recall(SPEED) is None and _slower(path, own):
                path.unlink(missing_ok=True)
        _prune(path.parent)


def _is_worth_it(packing: Packing, path: Path) -> bool:
    room = packing.room
    if room is None or room.written or len(room.taken) < LEAST:
        return False
    fast = tuning_cache.recall(SPEED) != "slower"
    return fast and are_fresh(packing.origins) and _has_place(path, len(room.taken))


def forget(name: str | None) -> None:
    """Remove a packing, if it is there."""
    path = None if name is None else _path(name)
    if path is not None:
        path.unlink(missing_ok=True)


def sizes() -> list[int]:
    """Bytes of each packing there is, and of those that are being written."""
    folder = own_folder("packings")
    return [] if folder is None else [path.stat().st_size for path in folder.iterdir()]


def _path(name: str) -> Path | None:
    folder = own_folder("packings")
    return None if folder is None else folder / f"{name}.panels"


def _has_place(path: Path, size: int) -> bool:
    """Whether it would make way for no other that is in use: two would push each other out."""
    now = time.time()
    others = [other.stat() for other in path.parent.glob("*.panels") if other != path]
    used = sum(other.st_size for other in others if now - other.st_atime < IN_USE)
    free = shutil.disk_usage(path.parent).free
    return size + used <= allowed() and is_local(path.parent) and free >= 2 * size + SPARE


def _slower(path: Path, own: Tensor) -> bool:
    """Whether panels are read slower out of a file than where they are; seen once on a machine.

    By processor time of one thread, for products of one row.
    """
    mapped = packing_file.read(path)
    panel = WIDTH * panels.PANEL * 4  # bytes
    count = min(len(own), PART) // panel
    x = torch.zeros(1, WIDTH)

    def multiply(memory: Tensor) -> Tensor:
        weights = memory[: count * panel].view(torch.float32).view(count, WIDTH, panels.PANEL, 1)
        return panels.product(x, weights, None, count * panels.PANEL)

    with threads(1):
        ways = [partial(multiply, mapped), partial(multiply, own)]
        there, here = typical(ways, time.thread_time)
    slower = there > SLOWER * here
    tuning_cache.keep(SPEED, "slower" if slower else "as fast")
    return slower


def _prune(folder: Path) -> None:
    """Remove what has not been used for longest, until the rest is no more than allowed."""
    total = 0
    for path in sorted(folder.glob("*.panels"), key=lambda p: p.stat().st_atime, reverse=True):
        total += path.stat().st_size
        if total > allowed():
            path.unlink(missing_ok=True)
    for path in folder.glob("*.new"):
        if time.time() - path.stat().st_mtime > LEFT:
            path.unlink(missing_ok=True)
