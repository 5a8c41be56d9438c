"""Folders of the user."""

import os
from pathlib import Path


def cache_home() -> Path:
    """Where this project keeps what can be made again; not absolute for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spsbench"
