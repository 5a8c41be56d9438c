"""The folder of a run: what its files are called, and whether it may be written."""

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from spsbench.errors import CannotCreateError, PermissionDeniedError, SpsError
from spsbench.hardware.files import sync
from spsbench.settings.records import Key
from spsbench.store.atomic import next_free
from spsbench.store.lock import Lock

Shard = tuple[int, int]  # number, of how many
WHOLE: Shard = (0, 1)
LOCK = ".lock"  # held while the manifest or the folder itself is changed
NAME = re.compile(r"records-(\d+-of-\d+)\.jsonl")


TURN = " turn "  # in the name of a later turn, after that of its conversation


def belongs(key: Key, shard: Shard) -> bool:
    """Whether a generation is made in this shard.

    By sample and repeat only: the methods of one prompt are timed together, on one machine; and the
    turns of a conversation follow each other there.
    """
    number, total = shard
    conversation = key[1].partition(TURN)[0]
    digest = hashlib.blake2b(f"{conversation}\0{key[2]}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % total == number


def shard_name(shard: Shard) -> str:
    """`00-of-04`."""
    return f"{shard[0]:02d}-of-{shard[1]:02d}"


def records_path(folder: Path, shard: Shard) -> Path:
    """The log of a shard."""
    return folder / f"records-{shard_name(shard)}.jsonl"


def record_logs(folder: Path) -> dict[str, Path]:
    """Shard name -> log, of all shards that have begun, in order."""
    found = {}
    for path in sorted(folder.iterdir()):
        match = NAME.fullmatch(path.name)
        if match:
            found[match[1]] = path
    return found


def unbegun(names: Iterable[str]) -> list[str]:
    """Shards that are still to begin, by those that have; none if some layout has all of its."""
    layouts: dict[int, set[int]] = {}
    for name in names:
        number, total = name.split("-of-")
        layouts.setdefault(int(total), set()).add(int(number))
    missing = [
        [shard_name((number, total)) for number in range(total) if number not in begun]
        for total, begun in layouts.items()
    ]
    return min(missing, key=len, default=[])


def check_writable(folder: Path) -> None:
    """Try whether a run can be written to `folder`, there already or not; leaves nothing behind.

    Raises:
        CannotCreateError: a file is in the way, or the file system is full or read-only.
        PermissionDeniedError: it is somebody else's.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # refuses a name that cannot be
        place = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        if not place.is_dir():
            raise OSError(errno.ENOTDIR, f"{place} is no folder")
        probe = place / f".probe-{os.getpid()}"
        try:
            with probe.open("xb") as file:
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_create(error, folder) from error


def make(folder: Path) -> None:
    """Create a folder for a run, or use one that is empty or holds a run.

    Raises:
        CannotCreateError, PermissionDeniedError: as `check_writable`; or it holds something else.
    """
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
        foreign = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise cannot_create(error, folder) from error
    if foreign and "manifest.json" not in foreign:
        raise CannotCreateError(
            f"not a run ({folder}, holds {min(foreign)}): expected an empty folder or a run. "
            "Name another folder"
        )


def move_aside(folder: Path) -> Path:
    """Rename the folder of a run to `<name>.old-<n>` and say which; nothing is deleted.

    Raises:
        InUseError: a process writes a log of it.
        CannotCreateError, PermissionDeniedError: it cannot be renamed.
    """
    for log in sorted(folder.glob("*.jsonl")):
        Lock(log).close()
    old = next_free(folder, "old")
    try:
        folder.rename(old)
        sync(folder.parent)
    except OSError as error:
        raise cannot_create(error, folder) from error
    return old


def cannot_create(error: OSError | ValueError, folder: Path) -> SpsError:
    """The line for a folder that a system call refused."""
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"cannot write to {folder} ({error.strerror}): expected a folder of yours. "
            "Name another folder, or change its mode"
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return CannotCreateError(
        f"cannot write to {folder} ({reason}): expected a writable place with room. "
        "Name another folder"
    )
