"""Writing a run: each generation once, across interrupts, resumes and merges."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import replace

from spsbench.errors import CannotCreateError, DataError, MismatchError, UsageError, WriteError
from spsbench.hardware.files import sync
from spsbench.settings.records import Key, Record
from spsbench.store.atomic import remove_drafts
from spsbench.store.lock import Lock
from spsbench.store.log import PACKED, Log, encode_record, iterate
from spsbench.store.manifest import NAME, Manifest, refuse_differences
from spsbench.store.records import LogReader, Once, logs_of
from spsbench.store.run_folder import (
    WHOLE,
    Shard,
    belongs,
    check_writable,
    make_run_folder,
    move_aside,
    record_logs,
    records_path,
    shard_name,
)
from spsbench.store.starts import Note, Provenance, Start

ATTEMPTS = 3  # failures after which a sample is not retried


class RunWriter:
    """The records of one shard, and the keys that all shards have.

    `RunWriter` is a context manager; a run that is refused before its first record leaves nothing
    behind. One that is interrupted keeps what it has measured, for the next start.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard, made_folder: bool) -> None:
        """Open the log of `shard`; `open_run` checks the folder, which goes if `made_folder`."""
        self.folder = folder
        self.manifest = manifest
        self.shard = shard
        self.done: set[Key] = set()  # recorded, or failed `ATTEMPTS` times
        self.starts: list[Start] = []  # earlier ones, of all shards
        self._failures: Counter[Key] = Counter()
        self._made_folder = made_folder
        self._waiting: list[Start] = []  # that no record has followed yet
        self._latest = Start()  # this process's
        self._begun = False
        self._clock: datetime | None = None  # that of this start's prompts, if not the manifest's
        reader = LogReader(path := records_path(folder, shard))
        self._log = Log(path, lambda values: self._take(reader, values))
        self.count = reader.count  # records in this shard's log, including failures
        try:
            self._read_others(path)
        except BaseException:
            self.close()
            raise
        self.starts += reader.starts
        self.engines = {name: x for start in reader.starts for name, x in start.engines.items()}
        remove_drafts(folder, f"*-{shard_name(shard)}.json*")

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the shard for other processes; a run without records leaves no files."""
        if not self.count and not (self.folder / NAME).exists():
            with suppress(OSError):
                self._log.path.unlink(missing_ok=True)
                if self._made_folder:
                    self.folder.rmdir()
        self._log.close()

    def is_missing(self, key: Key) -> bool:
        """Return whether a generation belongs to this shard and is missing."""
        return key not in self.done and belongs(key, self.shard)

    def start(self, provenance: Provenance, machine: str | None = None) -> None:
        """Note a start of a worker's `machine` or of this process; the next record writes it."""
        start = Start(provenance=provenance, machine=machine)
        self._waiting.append(start)
        if machine is None:
            self._latest = start

    def append(self, record: Record, machine: str | None = None) -> None:
        """Write a generation that `is_missing`, else ValueError, after the starts that wait.

        `machine`: the worker that made it, whose `start` came before (not checked); None: this
        process. A first record brings the manifest. DataError: an impossible record. WriteError:
        the log failed, and is closed.
        """
        if not self.is_missing(record.key):
            raise ValueError(f"{record.key}: not missing in shard {shard_name(self.shard)}")
        if problem := record.problem:
            raise DataError(
                f"impossible record ({'/'.join(map(str, record.key))}: {problem}): expected what "
                "was measured. It was not written; earlier records are kept"
            )
        of_line = {} if machine is None else {"machine": machine}
        attempt = self._failures[record.key] + 1
        self._write_starts()
        self._log.append({"attempt": attempt, **record.to_json(), **of_line})
        self.count += 1
        self._see(record)

    def note(self, **facts: Any) -> None:
        """Add facts, fields of `Note`, to this process's start, and to its log once begun."""
        note = convert(facts, Note)
        self._latest.add(note)
        if self._begun:
            self._log.append({"note": to_builtins(note)})

    def _write_starts(self) -> None:
        """Append waiting starts to the log, after a missing manifest; MismatchError: it differs.

        The first call takes over the manifest that is there. If its prompts have other tokens,
        since chat templates wrote another time, starts get this process's time as their `clock`.
        """
        if not self._begun:
            mine, self.manifest = self.manifest, self.manifest.write_once(self.folder)
            other_prompts = self.manifest.prompt_ids != mine.prompt_ids
            self._clock = mine.created if other_prompts else None
            self._begun = True
        while self._waiting:
            start = replace(self._waiting[0], clock=self._clock)
            self._log.append({"start": to_builtins(start)})
            del self._waiting[0]

    def _read_others(self, own: Path) -> None:
        """Take in the logs but `own`; InUseError: one of another number of shards has a writer."""
        for name, path in record_logs(self.folder).items():
            if path == own:
                continue
            if not name.endswith(f"-of-{self.shard[1]:02d}"):
                Lock(path).close()
            reader = LogReader(path)
            for values in iterate(path):
                self._take(reader, values)
            self.starts += reader.starts

    def _take(self, reader: LogReader, values: Mapping[str, Any]) -> None:
        if (placed := reader.take(values)) is not None:
            self._see(placed.record)

    def _see(self, record: Record) -> None:
        if record.error is not None:
            self._failures[record.key] += 1
        if record.error is None or self._failures[record.key] >= ATTEMPTS:
            self.done.add(record.key)


def open_run(
    folder: Path,
    manifest: Manifest,
    *,
    shard: Shard = WHOLE,
    resume: bool = False,
    overwrite: bool = False,
) -> RunWriter:
    """Start or resume a run in `folder`, which is made; the manifest comes with the first record.

    `resume` continues a run (or starts a missing run); `overwrite` moves the old run aside. A shard
    that has not begun joins a run of its layout without `resume`. Records that a log lacks are made
    again. MismatchError: another run is there, or this shard has begun and neither option is given.
    InUseError: a writer is. UsageError: both options, no such shard, or packed records to resume.
    CannotCreateError: the folder cannot be one.
    """
    if overwrite and resume:
        raise UsageError("`resume` with `overwrite`: expected one of them. Leave one out")
    if not 0 <= shard[0] < shard[1]:
        raise UsageError(f"shard {shard[0]} of {shard[1]}: expected a number below the total")
    folder = Path(os.path.abspath(folder))  # `.` cannot be renamed
    made_folder = not folder.exists()
    make_run_folder(folder)
    if overwrite and (folder / NAME).exists():
        move_aside(folder)
        make_run_folder(folder)
    _refuse_begun(folder, shard, resume)
    if (folder / NAME).exists():
        existing = Manifest.load(folder)
        refuse_differences(manifest, existing, folder)
        manifest = existing
        remove_drafts(folder, NAME)
    return RunWriter(folder, manifest, shard, made_folder)


def _refuse_begun(folder: Path, shard: Shard, resume: bool) -> None:
    """Raise MismatchError, unless `resume`, if the shard or one of another layout has begun.

    InUseError: one of another layout has a writer. UsageError: `resume` of packed records.
    """
    for name, log in record_logs(folder).items():
        other_layout = not name.endswith(f"-of-{shard[1]:02d}")
        if other_layout:
            Lock(log).close()
        begun = other_layout or name == shard_name(shard)
        if resume and log.suffix in PACKED:
            raise UsageError(
                f"packed records ({log}): expected records-*.jsonl, which `resume` can go on with. "
                "Unpack them with gunzip or unxz"
            )
        if begun and not resume and log.stat().st_size:
            raise MismatchError(
                f"a run is there already ({folder}): expected an empty folder. Go on with "
                "`resume`, start over with `overwrite` (the old run is kept), or name another"
            )


def merge_runs(folders: Sequence[Path], out: Path) -> Manifest:
    """Merge runs of one configuration, as shards of machines; SpsError: unlike, or `out` is in use.

    `out` appears atomically, without audits or scores. Its manifest, the first run's, is returned.
    """
    if not folders:
        raise UsageError("no runs to merge: expected one or more. Name their folders")
    if len({folder.resolve() for folder in folders}) < len(folders):
        names = ", ".join(map(str, folders))
        raise UsageError(f"one run twice ({names}): expected different ones. Name each once")
    runs = {folder: Manifest.load(folder) for folder in folders}
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
        with records_path(draft, WHOLE).open("xb") as file:
            for number, values in enumerate(_merged_lines(runs, first)):
                file.write(encode_record(number, values))
            file.flush()
            os.fsync(file.fileno())
        first.write_once(draft)
        draft.rename(out)
        sync(out.parent)
    except OSError as error:
        raise WriteError.of(error, out) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return first


def _merged_lines(runs: dict[Path, Manifest], first: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of `runs`: every record once, starts that have records, and their notes.

    Where chat templates write the time, the starts of other runs than the first keep their clock.
    """
    once = Once()
    latest: dict[str | None, Start] = {}  # machine -> its start that was written
    for folder, manifest in runs.items():
        has_other_prompts = manifest.prompt_ids != first.prompt_ids
        clock = {"clock": to_builtins(manifest.created)} if has_other_prompts else {}
        for path in logs_of(folder).values():
            reader = LogReader(path)
            for values in iterate(path):
                if (placed := reader.take(values)) is None:
                    if "note" in values and latest.get(None) is reader.latest[None]:
                        yield values
                elif once.is_new(placed.record, path):
                    machine, start = placed.start.machine, placed.start
                    if latest.get(machine) is not start:
                        latest[machine] = start
                        yield {"start": {**clock, **to_builtins(start)}}
                    yield values
