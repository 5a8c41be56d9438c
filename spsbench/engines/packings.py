"""Panels of models kept on disk: the next load maps them, and lays nothing out.

Pages of a file that the system holds in memory are not cleared, copied or read before their use,
and all processes have them together. A packing is named by what it is made of: files of weights as
they are now, layouts, the code that lays out.
"""

import hashlib
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.engines import codes, kept, packing_file, pages, panels, quantised_panels
from spsbench.engines.native import SOURCES
from spsbench.engines.packing_file import DamagedError
from spsbench.engines.pages import Room
from spsbench.engines.trials import threads, typical
from spsbench.machine.cache_home import own_folder
from spsbench.machine.disks import allowed, is_local

LEAST = 64 * 2**20  # bytes: less is laid out in no time
SPARE = 4 * 10**9  # bytes of the disk that are left to others, beside as much as a packing takes
PART = 256 * 2**20  # bytes
WIDTH = 1024  # inputs
SLOWER = 1.05
SPEED = "packings"  # what `kept` calls whether mapped panels are read as fast as others
LEFT = 3600.0  # seconds, after which an unfinished file is nobody's


class Packing(NamedTuple):
    """Panels of one model, and what they are called on disk; None: they cannot be had again."""

    name: str | None = None
    room: Room | None = None


def name_of(parts: Iterable[tuple[str | None, str]]) -> str | None:
    """Of panels in their order: the origin of each, and how it is laid out.

    None: there are none, or one of unknown origin.
    """
    known = list(parts)
    if not known or any(origin is None for origin, _ in known):
        return None
    told = "".join(f"{origin} {how}\0" for origin, how in known)
    return hashlib.sha256(_code() + told.encode()).hexdigest()[:24]


@cache
def _code() -> bytes:
    """A digest of what lays panels out."""
    modules = pages, panels, codes, quantised_panels
    paths = [Path(str(module.__file__)) for module in modules]
    paths += [path for path in SOURCES if path.stem in ("panels", "codes")]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).digest()


def recall(name: str | None) -> Room | None:
    """A kept packing, in memory; None: there is none, or it was damaged and is none now."""
    path = None if name is None or not allowed() else _path(name)
    if path is None:
        return None
    try:
        found = packing_file.read(path)
        path.touch()  # it is in use: older ones go first
    except OSError:
        return None
    except DamagedError:
        path.unlink(missing_ok=True)
        return None
    return Room(found, written=True)


def keep(packing: Packing) -> None:
    """Keep what was laid out, if it is worth the disk; the next load is quicker then."""
    name, room = packing
    if name is None or room is None or room.written or len(room.taken) < LEAST:
        return
    path = _path(name)
    if path is None or path.exists() or kept.recall(SPEED) == "slower":
        return
    with suppress(OSError):  # it will be laid out again
        if _has_place(path.parent, len(room.taken)):
            packing_file.write(path, room.taken)
            if kept.recall(SPEED) is None and _slower(path, room.taken):
                path.unlink(missing_ok=True)
        _prune(path.parent)


def forget(name: str | None) -> None:
    """Remove a packing, if it is there."""
    path = None if name is None else _path(name)
    if path is not None:
        path.unlink(missing_ok=True)


def sizes() -> list[int]:
    """Bytes of each packing there is."""
    folder = own_folder("packings")
    return [] if folder is None else [path.stat().st_size for path in folder.glob("*.panels")]


def _path(name: str) -> Path | None:
    folder = own_folder("packings")
    return None if folder is None else folder / f"{name}.panels"


def _has_place(folder: Path, size: int) -> bool:
    free = shutil.disk_usage(folder).free
    return size <= allowed() and is_local(folder) and free >= 2 * size + SPARE


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
    kept.keep(SPEED, "slower" if slower else "as fast")
    return slower


def _prune(folder: Path) -> None:
    """Remove what has not been used for longest, until the rest is no more than allowed."""
    total = 0
    for path in sorted(folder.glob("*.panels"), key=lambda p: p.stat().st_mtime, reverse=True):
        total += path.stat().st_size
        if total > allowed():
            path.unlink(missing_ok=True)
    for path in folder.glob("*.new"):
        if time.time() - path.stat().st_mtime > LEFT:
            path.unlink(missing_ok=True)
