"""Writing a run: each generation once, whatever stops it and however often it is resumed."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from spsbench.errors import MismatchError, UsageError
from spsbench.settings.records import Key, Record
from spsbench.store import manifest as manifests
from spsbench.store.atomic import remove_drafts
from spsbench.store.folder import (
    LOCK,
    WHOLE,
    Shard,
    belongs,
    make,
    move_aside,
    record_logs,
    records_path,
    shard_name,
)
from spsbench.store.lock import Lock
from spsbench.store.log import Log, iterate
from spsbench.store.manifest import Manifest, differences, refuse_differences
from spsbench.store.records import known_of, logs_of, read_record

ATTEMPTS = 3  # a sample that failed so often is not tried again
PATIENCE = 60.0  # seconds to wait for another shard that is just starting


class RunWriter:
    """The records of one shard, and what all shards have done. Use it as a context manager."""

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard) -> None:
        """Open the log of `shard`; see `open_run`, which checks that it may be."""
        self.folder = folder
        self.manifest = manifest
        self.shard = shard
        self.done: set[Key] = set()  # recorded, or failed `ATTEMPTS` times
        self.loss = ""  # what this shard once had and is to make again, in words
        self._failures: Counter[Key] = Counter()
        path = records_path(folder, shard)
        for log in record_logs(folder).values():
            if log != path:
                each = self._reader(log)
                for values in iterate(log):
                    each(values)
        self._log = Log(path, self._reader(path))
        remove_drafts(folder, f"*-{shard_name(shard)}.json*")

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write this shard."""
        self._log.close()

    @property
    def count(self) -> int:
        """Records in this shard's log, failures among them."""
        return self._log.count

    def wants(self, key: Key) -> bool:
        """Whether a generation is of this shard and still missing."""
        return key not in self.done and belongs(key, self.shard)

    def attempts(self, key: Key) -> int:
        """How often a generation has failed."""
        return self._failures[key]

    def append(self, record: Record, machine: str | None = None) -> None:
        """Make a generation, or its failure, durable before returning.

        Args:
            machine: that made it, by the name under which it has joined; None = this process.

        Raises:
            WriteError: it could not be written; what was written before is kept.
            ValueError: it is of another shard, or done already.
        """
        if not self.wants(record.key):
            raise ValueError(f"{record.key}: not missing in shard {shard_name(self.shard)}")
        values = {"attempt": self.attempts(record.key) + 1, **record.to_json()}
        if machine is not None:
            values["machine"] = machine
        self._log.append(values)
        self._see(record)

    def join(self, machine: str, provenance: Mapping[str, Any]) -> None:
        """Note in the manifest that another machine makes records from now on."""
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
        """Note in the manifest what became known of this start since it was begun."""
        self._change({"provenance": self._start["provenance"] | provenance})

    def finish(self) -> None:
        """Note in the manifest how much is in the logs: a lost end is then missed."""
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
            segments = tuple(amended if each == mine else each for each in there.segments)
            replace(there, segments=segments).save(self.folder)
            own = tuple(amended if each == mine else each for each in self.manifest.segments)
            self.manifest = replace(self.manifest, segments=own)

    @property
    def _start(self) -> dict[str, Any]:
        """The segment that this process began with; those of machines come after it."""
        return next(s for s in reversed(self.manifest.segments) if "machine" not in s)

    def _reader(self, path: Path) -> Callable[[dict[str, Any]], None]:
        """Sees the records of a log, which are given in order."""
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
    resume_anyway: bool = False,
) -> RunWriter:
    """Start a run in `folder`, or go on with the one that is there.

    `resume` goes on (and starts where there is nothing yet); `overwrite` moves the old run aside;
    `resume_anyway` goes on under another configuration, in a segment that says what differs. A
    shard that has not begun joins a run of its layout without being told to resume. Records that
    a shard has lost (its log was removed, or cut) are made again when it is resumed.

    Raises:
        UsageError: `resume` with `overwrite`; a shard that cannot be.
        CannotCreateError, PermissionDeniedError: nothing can be written there.
        InUseError: another process writes this shard, or the run in another layout.
        MismatchError: a run is there, and `resume` was not said or its fingerprint differs.
        DataError: its files are damaged.
    """
    if overwrite and (resume or resume_anyway):
        raise UsageError("--resume with --overwrite: expected one of them. Leave one out")
    if not 0 <= shard[0] < shard[1]:
        raise UsageError(f"shard {shard[0]} of {shard[1]}: expected a number below the total")
    folder = Path(os.path.abspath(folder))  # it may be `.`, and is moved by its name
    make(folder)
    with ExitStack() as locks:
        locks.enter_context(Lock(folder / LOCK, PATIENCE))
        if overwrite and (folder / manifests.NAME).exists():
            move_aside(folder)
            make(folder)
            locks.enter_context(Lock(folder / LOCK, PATIENCE))
        return _enter(folder, manifest, shard, resume or resume_anyway, resume_anyway)


def _enter(folder: Path, mine: Manifest, shard: Shard, resume: bool, anyway: bool) -> RunWriter:
    """Check `mine` against what is there, open the log, and note the start in the manifest."""
    manifest = mine
    remove_drafts(folder, manifests.NAME)
    if (folder / manifests.NAME).exists():
        manifest = Manifest.load(folder)
        _refuse_begun(folder, shard, resume)
        if not resume:
            logs_of(folder, manifest)
        if not anyway:
            refuse_differences(mine, manifest, folder)
        manifest = _joined(manifest, mine)
    manifest.save(folder)
    there = shard_name(shard) in record_logs(folder)
    writer = RunWriter(folder, manifest, shard)
    try:
        begun = [known_of(s) for s in manifest.segments if s["shard"] == shard_name(shard)]
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
    """The manifest of a run that goes on with what `mine` asks for."""
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
    """The manifest without the starts whose records are gone.

    Those of another shard in this layout stay: that shard can be resumed itself.
    """
    logs, mine, layout = record_logs(folder), shard_name(shard), f"-of-{shard[1]:02d}"

    def stays(name: str, first: int) -> bool:
        return first <= count if name == mine else name in logs or name.endswith(layout)

    kept = [segment for segment in manifest.segments if stays(segment["shard"], segment["first"])]
    own = [
        s | {"records": count} if s["shard"] == mine and known_of(s) > count else s for s in kept
    ]
    return replace(manifest, segments=tuple(own))


def _refuse_begun(folder: Path, shard: Shard, resume: bool) -> None:
    """Check that this shard has not begun, or is to be resumed, and no other layout is at work."""
    for name, log in record_logs(folder).items():
        other_layout = not name.endswith(f"-of-{shard[1]:02d}")
        if other_layout:
            Lock(log).close()
        begun = other_layout or name == shard_name(shard)
        if begun and not resume and log.stat().st_size:
            raise MismatchError(
                f"a run is there already ({folder}): expected an empty folder. Go on with "
                "--resume, start over with --overwrite (the old run is kept), or name another"
            )
