"""The disk: of which kind it is under a folder, and how much of it packings may take."""

import math
import os
import re
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
        place = folder.resolve(strict=True)
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it is not there, or another system
        return False
    mounts = [line.split(" - ") for line in lines.splitlines() if " - " in line]
    kinds = {_path(left.split()[4]): right.split()[0] for left, right in mounts}
    above = [path for path in (place, *place.parents) if path in kinds]
    return bool(above) and kinds[above[0]] in _LOCAL


def _path(written: str) -> Path:
    """Of a mount, whose blanks are written in octal."""
    return Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), written))
