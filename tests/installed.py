"""Somebody else's package, as an installer leaves it: its modules, and a folder of metadata."""

from collections.abc import Mapping
from pathlib import Path


def install(site: Path, files: Mapping[str, str], points: str) -> Path:
    """Write a package `theirs` into `site`, which is then to be put on the path.

    Args:
        site: made if it is not there.
        files: path -> source.
        points: its entry points, as in `entry_points.txt`.
    """
    for path, source in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(source)
    known = site / "theirs-1.0.dist-info"
    known.mkdir(parents=True, exist_ok=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(points)
    return site
