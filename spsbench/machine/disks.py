"""The disk: of which kind it is under a folder, and how much of it packings may take."""

import math
import os
from pathlib import Path

VARIABLE = "SPSBENCH_PACKINGS_GB"
USUAL = 20.0  # GB
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "overlay"})


def allowed() -> int:
    """Bytes that kept packings may take together, of 10^9 a GB; 0: none is kept."""
    given = os.environ.get(VARIABLE)
    return round(10**9 * (USUAL if given is None or bad_share() is not None else float(given)))


def bad_share() -> str | None:
    """The variable, if it is no number of GB from 0."""
    given = os.environ.get(VARIABLE)
    try:
        good = given is None or 0 <= float(given) < math.inf
    except ValueError:
        good = False
    return None if good else given


def is_local(folder: Path) -> bool:
    """Whether it is on a disk of this machine: neither in its memory nor at another's."""
    try:
        device = folder.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = [line.split(" - ") for line in lines.splitlines() if " - " in line]
    kinds = [right.split()[0] for left, right in mounts if left.split()[2] == number]
    return any(kind in _LOCAL for kind in kinds)
