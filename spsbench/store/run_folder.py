"""The folder of a run: file names, permissions, logs and audits."""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import CannotCreateError, DataError, PermissionDeniedError, SpsError
from spsbench.hardware.files import sync
from spsbench.settings.records import SCHEMA, Key
from spsbench.store.atomic import next_free, replace_file
from spsbench.store.lock import Lock
from spsbench.untrusted import read_json

Shard = tuple[int, int]  # index, number of shards
WHOLE: Shard = (0, 1)
RECORDS = re.compile(r"records-(\d++-of-\d++)\.jsonl(?:\.gz|\.xz)?")  # a kept run is packed
AUDITS = "audit.json"
PARTS = ("name", "settings", "verdict", "line", "controls")  # required fields of an audit
TURN = " turn "  # separates a conversation from the turn in a sample's name


def belongs(key: Key, shard: Shard) -> bool:
    """Return whether a generation belongs to a shard: by a hash of its sample and repeat only.

    One machine times all methods of a prompt. Of `CONVERSATION turn N` the conversation is hashed.
    """
    number, total = shard
    conversation = key[1].partition(TURN)[0]
    digest = hashlib.blake2b(f"{conversation}\0{key[2]}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % total == number


def shard_name(shard: Shard) -> str:
    """Return the name of a shard: `00-of-04`."""
    return f"{shard[0]:02d}-of-{shard[1]:02d}"


def records_path(folder: Path, shard: Shard) -> Path:
    """Return the path of a shard's log."""
    return folder / f"records-{shard_name(shard)}.jsonl"


def record_logs(folder: Path) -> dict[str, Path]:
    """Return shard name -> log of all shards that have begun, in order."""
    paths = {path.name: path for path in sorted(folder.iterdir())}
    return {match[1]: paths[name] for name in paths if (match := RECORDS.fullmatch(name))}


def unbegun(names: Iterable[str]) -> list[Shard]:
    """Return the shards still to begin, of the layout (total) that lacks fewest; [] if none lacks.

    `names` are those of shards that have begun, as `shard_name` writes them; without any it is [].
    """
    layouts: dict[int, set[int]] = {}
    for name in names:
        number, total = map(int, name.split("-of-"))
        layouts.setdefault(total, set()).add(number)
    missing = [
        [(number, total) for number in range(total) if number not in begun]
        for total, begun in layouts.items()
    ]
    return min(missing, key=len, default=[])


def check_writable(folder: Path) -> None:
    """Raise `cannot_create` unless `folder`, existing or not, can be written to; leave nothing."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # refuses an invalid name
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


def make_run_folder(folder: Path) -> None:
    """Create a folder for a run; SpsError: it cannot be one, or is neither empty nor a run's."""
    check_writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as error:
        raise cannot_create(error, folder) from error
    foreign = {name for name in names if not RECORDS.fullmatch(name)}  # a killed start leaves one
    if foreign and "manifest.json" not in foreign:
        raise CannotCreateError(
            f"not a run ({folder}, holds {min(foreign)}): expected an empty folder or a run. "
            "Name another folder"
        )


def move_aside(folder: Path) -> Path:
    """Rename a run's folder to a free `<name>.old-<n>`; return it. SpsError: in use, or refused."""
    with contextlib.ExitStack() as locks:  # a writer that comes meanwhile finds another file
        for log in sorted(folder.glob("*.jsonl")):
            locks.enter_context(Lock(log))
        old = next_free(folder, "old")
        try:
            folder.rename(old)
            sync(folder.parent)
        except OSError as error:
            raise cannot_create(error, folder) from error
    return old


def cannot_create(error: OSError | ValueError, folder: Path) -> SpsError:
    """Return PermissionDeniedError or CannotCreateError for a folder that a system call refused."""
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


def write_audits(folder: Path, audits: Sequence[dict[str, Any]]) -> Path:
    """Write audits, in the format of `sps verify --json`, next to the records; return the path."""
    path = folder / AUDITS
    content = json.dumps({"schema": SCHEMA, "audits": list(audits)}, indent=1, allow_nan=False)
    replace_file(path, f"{content}\n".encode("ascii"))
    return path


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """Return the audits in a run's `audit.json`; [] without it. DataError: not what sps wrote."""
    path = folder / AUDITS
    if not path.is_file():
        return []
    values = read_json(path, "an audit that sps verify run --keep wrote")
    audits = values.get("audits") if isinstance(values, dict) else None
    sound = (
        isinstance(audits, list)
        and values.get("schema") == SCHEMA
        and all(isinstance(audit, dict) and audit.keys() >= set(PARTS) for audit in audits)
    )
    if not sound:
        raise DataError(
            f"an audit that cannot be read ({path}): expected what sps verify run --keep "
            f"writes, of schema {SCHEMA}. Delete it, and audit again"
        )
    return list(audits or ())
