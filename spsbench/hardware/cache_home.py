"""Folders of the user."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_home() -> Path:
    """Where this project keeps what can be made again; not absolute for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spsbench"


def own_folder(name: str) -> Path | None:
    """A folder in there that nobody else can write; None: there is no such place."""
    place = cache_home() / name
    if not place.is_absolute():
        return None
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = place.stat()
    except OSError:
        return None
    ours = state.st_uid == os.geteuid() and not state.st_mode & 0o022
    return place if ours and os.access(place, os.W_OK) else None


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A draft to write, this user's alone, which then takes the place of `path`.

    Nobody sees half of it. Where the block fails it is removed.

    Raises:
        OSError: no file can be made there.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the disk hold the content of a file, or the entries of a folder.

    Raises:
        OSError: the disk did not take it.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
