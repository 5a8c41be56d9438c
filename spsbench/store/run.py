"""Writing a run: each generation once, across interrupts, resumes and merges."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from spsbench.errors import (
    CannotCreateError,
    DataError,
    MismatchError,
    SpsError,
    UsageError,
    WriteError,
)
from spsbench.hardware.files import sync
from spsbench.settings.records import Key, Record
from spsbench.store import manifest as manifests
from spsbench.store.atomic import remove_drafts
from spsbench.store.lock import Lock
from spsbench.store.log import Log, encode, iterate
from spsbench.store.manifest import Manifest, differences, refuse_differences
from spsbench.store.records import (
    Once,
    impossible,
    logs_of,
    read_record,
    recorded_count,
    refuse_loss,
)
from spsbench.store.run_folder import (
    LOCK,
    WHOLE,
    Shard,
    belongs,
    check_writable,
    make,
    move_aside,
    record_logs,
    records_path,
    shard_name,
)

ATTEMPTS = 3  # failures after which a sample is not retried
PATIENCE = 60.0  # seconds to wait for another shard that is starting


class RunWriter:
    """The records of one shard, and the state of all shards.

    `RunWriter` is a context manager; a run that is refused before its first record leaves nothing
    behind. One that is interrupted keeps what it has measured, for the next start.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard) -> None:
        """Open the log of `shard`; see `open_run`, which checks the state of the folder."""
        self.folder = folder
        self.manifest = manifest
        self.shard = shard
        self.done: set[Key] = set()  # recorded, or failed `ATTEMPTS` times
        self.made_folder = False  # by the start of this run
        self.loss = ""  # lost records of this shard that will be made again, in words
        self._failures: Counter[Key] = Counter()
        path = records_path(folder, shard)
        for log in record_logs(folder).values():
            if log != path:
                on_record = self._reader(log)
                for values in iterate(log):
                    on_record(values)
        self._log = Log(path, self._reader(path))
        remove_drafts(folder, f"*-{shard_name(shard)}.json*")

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close()
        if kind is not None and issubclass(kind, SpsError) and not self.count:
            remove_unused(self.folder, with_folder=self.made_folder)

    def close(self) -> None:
        """Release the shard for other processes."""
        self._log.close()

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
            ValueError: the record belongs to another shard, or is a repetition.
        """
        if not self.is_missing(record.key):
            raise ValueError(f"{record.key}: not missing in shard {shard_name(self.shard)}")
        if wrong := impossible(record, self.manifest.samples):
            raise DataError(
                f"impossible record ({'/'.join(map(str, record.key))}, {wrong}): expected what was "
                "measured. It was not written; earlier records are kept"
            )
        values = {"attempt": self.attempts(record.key) + 1, **record.to_json()}
        if machine is not None:
            values["machine"] = machine
        self._log.append(values)
        self._see(record)

    def join(self, machine: str, provenance: Mapping[str, Any]) -> None:
        """Note in the manifest that another machine contributes records from now on."""
        mine = self._start
        with Lock(self.folder / LOCK, PATIENCE):
            there = Manifest.load(self.folder)
            joined = mine | {
                "first": self.count,
                "started": manifests.now(),
                "provenance": dict(provenance),
                "machine": machine,
            }
            replace(there, segments=(*there.segments, joined)).save(self.folder)
            self.manifest = replace(self.manifest, segments=(*self.manifest.segments, joined))

    def amend(self, **provenance: Any) -> None:
        """Add to the manifest further provenance of this start."""
        self._change({"provenance": self._start["provenance"] | provenance})

    def add_counters(self, cell: str, counts: Mapping[str, float]) -> None:
        """Add what an engine counted over several texts of a cell, and of none alone."""
        counters = self._start.get("counters", {})
        sums = counters.get(cell, {})
        added = {name: sums.get(name, 0) + count for name, count in counts.items()}
        self._change({"counters": counters | {cell: added}})

    def finish(self) -> None:
        """Write the log lengths to the manifest, so that a truncated log is detected."""
        traces = {
            path.name: sum(1 for _ in iterate(path))
            for path in sorted(self.folder.glob(f"traces-*-{shard_name(self.shard)}.jsonl"))
        }
        self._change({"records": self.count} | ({"traces": traces} if traces else {}))

    def _change(self, values: dict[str, Any]) -> None:
        mine = self._start
        with Lock(self.folder / LOCK, PATIENCE):
            there = Manifest.load(self.folder)
            amended = mine | values
            segments = tuple(amended if segment == mine else segment for segment in there.segments)
            replace(there, segments=segments).save(self.folder)
            segments = tuple(
                amended if segment == mine else segment for segment in self.manifest.segments
            )
            self.manifest = replace(self.manifest, segments=segments)

    @property
    def _start(self) -> dict[str, Any]:
        """Return the segment of this process; segments of joined machines come later."""
        return next(s for s in reversed(self.manifest.segments) if "machine" not in s)

    def _reader(self, path: Path) -> Callable[[dict[str, Any]], None]:
        """Return a callback that takes the records of a log in order."""
        numbers, samples = count(), self.manifest.samples
        return lambda values: self._see(read_record(values, path, next(numbers), samples))

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
    A shard that has not begun joins a run of its layout without `resume`. Records lost from a shard
    (a removed or truncated log) are made again when the shard is resumed.

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
    remove_unused(folder, unlike=manifest)
    with ExitStack() as locks:
        locks.enter_context(Lock(folder / LOCK, PATIENCE))
        if overwrite and (folder / manifests.NAME).exists():
            move_aside(folder)
            make(folder)
            locks.enter_context(Lock(folder / LOCK, PATIENCE))
        writer = _enter(folder, manifest, shard, resume)
        writer.made_folder = made_folder
        return writer


def remove_unused(
    folder: Path, *, unlike: Manifest | None = None, with_folder: bool = False
) -> None:
    """Remove what the start of a run wrote, if no record was ever made and nobody writes.

    Args:
        unlike: keep a run of its configuration, which may go on.
        with_folder: remove the folder too, if it is empty then.
    """
    try:
        with ExitStack() as locks:
            locks.enter_context(Lock(folder / LOCK, PATIENCE))
            unused = _files_without_records(folder, locks)
            if unused and unlike is not None:
                fingerprint = Manifest.load(folder).fingerprint
                unused = unused if differences(unlike.fingerprint, fingerprint) else []
            for path in unused:
                path.unlink(missing_ok=True)
            if with_folder and unused:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
    except (OSError, SpsError):  # another process writes, or the folder may not be changed
        return


def _files_without_records(folder: Path, locks: ExitStack) -> list[Path]:
    """Return the files of a run that has no record, with its logs locked; empty: it has some."""
    if not (folder / manifests.NAME).exists():
        return []
    manifest, logs = Manifest.load(folder), record_logs(folder)
    shards = {segment["shard"] for segment in manifest.segments}
    if shards != set(logs) or any(map(recorded_count, manifest.segments)):
        return []
    for log in logs.values():
        locks.enter_context(Lock(log))
    if any(log.stat().st_size for log in logs.values()):
        return []
    choices = [folder / f"engines-{shard}.json" for shard in shards]
    files = [*logs.values(), *choices, folder / manifests.NAME]
    others = {path for path in folder.iterdir() if not path.name.startswith(".")} - set(files)
    return [] if others else files


def _enter(folder: Path, mine: Manifest, shard: Shard, resume: bool) -> RunWriter:
    """Check `mine` against the existing run, open the log, and note the start in the manifest."""
    manifest = mine
    remove_drafts(folder, manifests.NAME)
    if (folder / manifests.NAME).exists():
        manifest = Manifest.load(folder)
        _refuse_begun(folder, shard, resume)
        if not resume:
            logs_of(folder, manifest)
        refuse_differences(mine, manifest, folder)
        manifest = _joined(manifest, mine)
    manifest.save(folder)
    there = shard_name(shard) in record_logs(folder)
    writer = RunWriter(folder, manifest, shard)
    try:
        begun = [recorded_count(s) for s in manifest.segments if s["shard"] == shard_name(shard)]
        if begun and not there:
            writer.loss = f"the records of shard {shard_name(shard)} are gone"
        elif writer.count < max(begun, default=0):
            writer.loss = f"of {max(begun)} records or more {writer.count} are left"
        manifest = _without_lost(manifest, folder, shard, writer.count)
        segment = {
            "shard": shard_name(shard),
            "first": writer.count,  # number of its first record in the log
            "started": manifests.now(),
            "provenance": mine.provenance,
            "differences": differences(mine.fingerprint, manifest.fingerprint),
        }
        writer.manifest = replace(manifest, segments=(*manifest.segments, segment))
        writer.manifest.save(folder)
    except BaseException:
        writer.close()
        raise
    return writer


def _joined(manifest: Manifest, mine: Manifest) -> Manifest:
    """Return the manifest of a run that continues with the experiment of `mine`."""
    experiment = dict(manifest.experiment)
    if mine.experiment.get("paper"):
        experiment["paper"] = True
    if "samples" in experiment:
        noted = [m.experiment.get("samples", {}) for m in (manifest, mine)]
        tasks = dict.fromkeys(task for ids in noted for task in ids)
        experiment["samples"] = {
            task: list(dict.fromkeys(name for ids in noted for name in ids.get(task, ())))
            for task in tasks
        }
    return replace(manifest, experiment=experiment, cells={**manifest.cells, **mine.cells})


def _without_lost(manifest: Manifest, folder: Path, shard: Shard, count: int) -> Manifest:
    """Return the manifest without the starts whose records are lost.

    Starts of other shards in this layout stay: those shards can be resumed themselves.
    """
    logs, mine, layout = record_logs(folder), shard_name(shard), f"-of-{shard[1]:02d}"

    def stays(name: str, first: int) -> bool:
        return first <= count if name == mine else name in logs or name.endswith(layout)

    kept = [segment for segment in manifest.segments if stays(segment["shard"], segment["first"])]
    segments = [
        s | {"records": count} if s["shard"] == mine and recorded_count(s) > count else s
        for s in kept
    ]
    return replace(manifest, segments=tuple(segments))


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


NOTED = ("records", "traces")  # counts of a start, in the manifest at its end


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
    _refuse_twice(folders)
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
        cells = {name: cell for run in runs.values() for name, cell in run.cells.items()}
        merged = replace(first, cells=cells, segments=tuple(segments))
        merged.save(draft)
        draft.rename(out)
        sync(out.parent)
    except OSError as error:
        raise WriteError.of(error, out) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return merged


def _refuse_twice(folders: Sequence[Path]) -> None:
    """Check that no run is named twice under different paths."""
    places: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in places:
            raise UsageError(
                f"one run twice ({places[place]}, {folder}): expected different ones. "
                "Name each once"
            )
        places[place] = folder


def _merge_logs(runs: dict[Path, Manifest], first: Manifest, out: Path) -> list[dict[str, Any]]:
    """Write every record of `runs` once to `out`; return the segments in the written order.

    Where chat templates write the time, the starts of other runs than the first keep their clock.
    """
    once = Once()
    segments: list[dict[str, Any]] = []
    count = 0
    with out.open("xb") as file:
        for folder, manifest in runs.items():
            samples = manifest.samples
            own_prompts = manifest.prompt_ids != first.prompt_ids
            clock = {"clock": manifest.created} if own_prompts else {}
            for shard, path in logs_of(folder, manifest).items():
                starts = [segment for segment in manifest.segments if segment["shard"] == shard]
                known_counts, number = [recorded_count(segment) for segment in starts], -1
                for number, values in enumerate(iterate(path)):
                    while starts and starts[0]["first"] <= number:
                        place = {"shard": shard_name(WHOLE), "first": count}
                        start = {k: v for k, v in starts.pop(0).items() if k not in NOTED}
                        segments.append(clock | start | place)
                    if once.is_new(read_record(dict(values), path, number, samples), path):
                        file.write(encode(count, values))
                        count += 1
                refuse_loss(path, number + 1, known_counts)
        file.flush()
        os.fsync(file.fileno())
    if segments:
        segments[-1]["records"] = count
    return segments
