"""Writing a run: each generation once, across interrupts, resumes and merges."""

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from spsbench.errors import CannotCreateError, DataError, MismatchError, UsageError, WriteError
from spsbench.hardware.files import sync
from spsbench.settings.records import Key, Record
from spsbench.store import manifest as manifests
from spsbench.store.atomic import remove_drafts
from spsbench.store.lock import Lock
from spsbench.store.log import Log, encode, iterate
from spsbench.store.manifest import Manifest, refuse_differences
from spsbench.store.records import Once, logs_of, read_record
from spsbench.store.run_folder import (
    LOCK,
    WHOLE,
    Shard,
    belongs,
    check_writable,
    choices_path,
    make,
    move_aside,
    record_logs,
    records_path,
    shard_name,
)

ATTEMPTS = 3  # failures after which a sample is not retried
PATIENCE = 60.0  # seconds to wait for another shard that is starting


class RunWriter:
    """The records of one shard, and the keys that all shards have.

    `RunWriter` is a context manager; a run that is refused before its first record leaves nothing
    behind. One that is interrupted keeps what it has measured, for the next start.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shard: Shard,
        provenance: Mapping[str, Any],
        made_folder: bool = False,
    ) -> None:
        """Open the log of `shard`; see `open_run`, which checks the state of the folder.

        Args:
            manifest: of the run; written with the first record, if it is not there.
            provenance: of this start, whose segment is written with its first record.
            made_folder: the folder is removed if no record is made.
        """
        self.folder = folder
        self.manifest = manifest
        self.shard = shard
        self.done: set[Key] = set()  # recorded, or failed `ATTEMPTS` times
        self._failures: Counter[Key] = Counter()
        self._made_folder = made_folder
        self._waiting: list[dict[str, Any]] = []  # segments that no record has followed yet
        path = records_path(folder, shard)
        for other in record_logs(folder).values():
            if other != path:
                for values in iterate(other):
                    self._see(read_record(values, other))
        self._log = Log(path, lambda values: self._see(read_record(values, path)))
        self._mine = self._start(provenance)
        remove_drafts(folder, f"*-{shard_name(shard)}.json*")

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the shard for other processes; a run without records leaves no files."""
        path, is_unused = self._log.path, not self.count
        self._log.close()
        if is_unused and not (self.folder / manifests.NAME).exists():
            with suppress(OSError):
                for unused in (path, choices_path(self.folder, self.shard)):
                    unused.unlink(missing_ok=True)
                if not record_logs(self.folder):
                    (self.folder / LOCK).unlink(missing_ok=True)
                if self._made_folder:
                    self.folder.rmdir()

    @property
    def count(self) -> int:
        """Return the number of records in this shard's log, including failures."""
        return self._log.count

    def is_missing(self, key: Key) -> bool:
        """Return whether a generation belongs to this shard and is missing."""
        return key not in self.done and belongs(key, self.shard)

    def attempts(self, key: Key) -> int:
        """Return the number of failures of a generation."""
        return self._failures[key]

    def append(self, record: Record, machine: str | None = None) -> None:
        """Write a generation, or its failure, and wait until it is on disk.

        Args:
            machine: name of the machine that made the record, from `join`; None = this process.

        Raises:
            WriteError: the record could not be written; earlier records are kept.
            DataError: the record could not be read again.
            MismatchError: another configuration has begun in this folder meanwhile.
            ValueError: the record belongs to another shard, or is a repetition.
        """
        if not self.is_missing(record.key):
            raise ValueError(f"{record.key}: not missing in shard {shard_name(self.shard)}")
        if problem := record.problem:
            raise DataError(
                f"impossible record ({'/'.join(map(str, record.key))}: {problem}): expected what "
                "was measured. It was not written; earlier records are kept"
            )
        of_line = {} if machine is None else {"machine": machine}
        if self._waiting:
            self._write_segments()
        self._log.append({"attempt": self.attempts(record.key) + 1, **record.to_json(), **of_line})
        self._see(record)

    def join(self, machine: str, provenance: Mapping[str, Any]) -> None:
        """Note that another machine contributes records from now on."""
        self._start(provenance, machine=machine)

    def amend(self, **provenance: Any) -> None:
        """Add to the manifest further provenance of this start."""
        self._change({"provenance": self._mine["provenance"] | provenance})

    def add_counters(self, cell: str, counts: Mapping[str, float]) -> None:
        """Add what an engine counted over several texts of a cell, and of none alone."""
        counters = self._mine.get("counters", {})
        sums = counters.get(cell, {})
        added = {name: sums.get(name, 0) + count for name, count in counts.items()}
        self._change({"counters": counters | {cell: added}})

    def _start(self, provenance: Mapping[str, Any], **of_machine: str) -> dict[str, Any]:
        """Return the segment of a start, which is written with the next record."""
        segment = {
            "shard": shard_name(self.shard),
            "first": self.count,  # number of its first record in the log
            "started": manifests.now(),
            "provenance": dict(provenance),
            **of_machine,
        }
        self._waiting.append(segment)
        return segment

    def _change(self, values: dict[str, Any]) -> None:
        """Change the segment of this start, in the manifest too if it is there."""
        self._mine |= values
        if not any(segment is self._mine for segment in self._waiting):
            self._write_segments()

    def _write_segments(self) -> None:
        """Write the segments of this process to the manifest, which is created if missing."""
        with Lock(self.folder / LOCK, PATIENCE):
            if (self.folder / manifests.NAME).exists():
                theirs = Manifest.load(self.folder)
                refuse_differences(self.manifest, theirs, self.folder)
                self.manifest = theirs
            segments, shard = list(self.manifest.segments), shard_name(self.shard)
            if not any(segment is self._mine for segment in self._waiting):
                own = [s["shard"] == shard and "machine" not in s for s in segments]
                segments[len(own) - 1 - own[::-1].index(True)] = self._mine
            self.manifest = replace(self.manifest, segments=(*segments, *self._waiting))
            self.manifest.save(self.folder)
            self._waiting = []

    def _see(self, record: Record) -> None:
        key = record.key
        if record.error is not None:
            self._failures[key] += 1
        if record.error is None or self._failures[key] >= ATTEMPTS:
            self.done.add(key)


def open_run(
    folder: Path,
    manifest: Manifest,
    *,
    shard: Shard = WHOLE,
    resume: bool = False,
    overwrite: bool = False,
) -> RunWriter:
    """Start a run in `folder`, or resume the existing run.

    `resume` continues a run (or starts a missing run); `overwrite` moves the old run aside.
    A shard that has not begun joins a run of its layout without `resume`. Records that a log lacks
    are made again.

    Raises:
        UsageError: `resume` with `overwrite`; an invalid shard.
        CannotCreateError, PermissionDeniedError: the folder cannot be written.
        InUseError: another process writes this shard, or the run in another layout.
        MismatchError: a run exists, and `resume` is not set or its fingerprint differs.
        DataError: files of the run are damaged.
    """
    if overwrite and resume:
        raise UsageError("`resume` with `overwrite`: expected one of them. Leave one out")
    if not 0 <= shard[0] < shard[1]:
        raise UsageError(f"shard {shard[0]} of {shard[1]}: expected a number below the total")
    folder = Path(os.path.abspath(folder))  # `.` cannot be renamed
    made_folder = not folder.exists()
    make(folder)
    if overwrite and (folder / manifests.NAME).exists():
        with Lock(folder / LOCK, PATIENCE):
            move_aside(folder)
        make(folder)
    with Lock(folder / LOCK, PATIENCE):
        provenance = manifest.provenance
        remove_drafts(folder, manifests.NAME)
        _refuse_begun(folder, shard, resume)
        if (folder / manifests.NAME).exists():
            existing = Manifest.load(folder)
            refuse_differences(manifest, existing, folder)
            manifest = existing
        return RunWriter(folder, manifest, shard, provenance, made_folder)


def _refuse_begun(folder: Path, shard: Shard, resume: bool) -> None:
    """Check that this shard is new or resumed, and that no other layout is in progress."""
    for name, log in record_logs(folder).items():
        other_layout = not name.endswith(f"-of-{shard[1]:02d}")
        if other_layout:
            Lock(log).close()
        begun = other_layout or name == shard_name(shard)
        if begun and not resume and log.stat().st_size:
            raise MismatchError(
                f"a run is there already ({folder}): expected an empty folder. Go on with "
                "`resume`, start over with `overwrite` (the old run is kept), or name another"
            )


def merge(folders: Sequence[Path], out: Path) -> Manifest:
    """Merge several runs of the same configuration, for instance shards of other machines.

    `out` appears atomically. Scores are computed again from the merged records.

    Raises:
        UsageError: no folders, or one run named twice.
        MismatchError: the configurations differ.
        DataError: damage, or a generation measured twice with different results.
        CannotCreateError, PermissionDeniedError, WriteError: `out` cannot be written or is in use.
    """
    if not folders:
        raise UsageError("no runs to merge: expected one or more. Name their folders")
    runs = {folder: Manifest.load(folder) for folder in folders}
    if len({folder.resolve() for folder in folders}) < len(folders):
        names = ", ".join(map(str, folders))
        raise UsageError(f"one run twice ({names}): expected different ones. Name each once")
    first = runs[folders[0]]
    for folder, manifest in runs.items():
        refuse_differences(manifest, first, folder, "Merge runs of one configuration only")
    out = out.absolute()
    check_writable(out)
    if out.exists() and any(out.iterdir()):
        raise CannotCreateError(
            f"folder in use ({out}): expected none, or an empty one. Name another folder"
        )
    draft = out.with_name(f".{out.name}.{os.getpid()}.merging")
    try:
        draft.mkdir(parents=True)
        segments = _merge_logs(runs, first, records_path(draft, WHOLE))
        merged = replace(first, segments=tuple(segments))
        merged.save(draft)
        draft.rename(out)
        sync(out.parent)
    except OSError as error:
        raise WriteError.of(error, out) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return merged


def _merge_logs(runs: dict[Path, Manifest], first: Manifest, out: Path) -> list[dict[str, Any]]:
    """Write every record of `runs` once to `out`; return the segments in the written order.

    Where chat templates write the time, the starts of other runs than the first keep their clock.
    """
    once = Once()
    segments: list[dict[str, Any]] = []
    latest: dict[str | None, tuple[Path, int]] = {}  # machine -> the last start of its records
    with out.open("xb") as file:
        count = 0
        for folder, manifest in runs.items():
            clock = {} if manifest.prompt_ids == first.prompt_ids else {"clock": manifest.created}
            for shard, path in logs_of(folder).items():
                for number, values in enumerate(iterate(path)):
                    if not once.is_new(read_record(values, path), path):
                        continue
                    machine = values.get("machine")
                    start = folder, manifest.start_of(shard, number, machine)
                    if latest.get(machine) != start:
                        latest[machine] = start
                        place = {"shard": shard_name(WHOLE), "first": count}
                        segments.append({**clock, **manifest.segments[start[1]], **place})
                    file.write(encode(count, values))
                    count += 1
        file.flush()
        os.fsync(file.fileno())
    return segments
