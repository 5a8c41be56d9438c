"""Files and folders: bounded reading, sizes in words, the user's cache, safe replacement."""

import errno
import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

LIMIT = 1 << 30  # bytes
SILENCE = 60.0  # seconds that a pipe is waited for


class _Pipe(FileIO):
    """A pipe whose writer may be silent for at most `SILENCE` seconds."""

    def readinto(self, buffer: Any) -> int | None:
        while (count := super().readinto(buffer)) is None:
            poll = select.poll()
            poll.register(self, select.POLLIN)
            if not poll.poll(1000 * SILENCE):
                raise TimeoutError(errno.ETIMEDOUT, f"silent for {SILENCE:g} s")
        return count


def open_file(path: Path) -> BufferedReader:
    """Open a file or a pipe to read its bytes; a pipe without a writer reads as empty.

    OSError: it cannot be opened, or is a folder or a device. A read of a pipe raises TimeoutError
    after `SILENCE` seconds without a byte.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        return BufferedReader(_Pipe(descriptor))
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "neither a file nor a pipe", str(path))
    os.set_blocking(descriptor, True)
    return open(path, "rb", opener=lambda path, flags: descriptor)


def read_file(path: Path, limit: int = LIMIT) -> bytes:
    """Return the content of a file or a pipe; OSError: as `open_file`, or above `limit` bytes."""
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return content


def in_words(size: float) -> str:
    """Format a number of bytes: `6.4 GB`."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def clock(seconds: float) -> str:
    """Format seconds, rounded, as hours, minutes and seconds: `1:02:03`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}"


def folder_size(folder: Path) -> int | None:
    """Return the bytes of the files right in `folder`; None: it has no config.json."""
    if not (folder / "config.json").is_file():
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def cache_home() -> Path:
    """Return `spsbench` in XDG_CACHE_HOME or ~/.cache, not made; not absolute without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spsbench"


def own_folder(name: str) -> Path | None:
    """Make and return folder `name` of `cache_home`; None: it fails, or others can write to it."""
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


def temporary_path(path: Path) -> Path:
    """Return the temporary path at which this process writes the content of `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_whole(
    path: Path, content: bytes, place: Callable[[Path, Path], None] = os.replace
) -> None:
    """Write `content` to `path` and flush it to disk: readers see all of it or nothing.

    `place` moves a finished temporary file there: `os.link` refuses a `path` that exists. OSError:
    it failed, or there is no such folder; no temporary file stays.
    """
    draft = temporary_path(path)
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        place(draft, path)
        sync(path.parent)
    finally:  # an interrupt, too, must leave no temporary file
        with suppress(OSError, ValueError):  # an invalid name
            draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
