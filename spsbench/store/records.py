"""Reading runs: each generation once, whatever shards and attempts it took; and merging runs."""

import os
import shutil
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import CannotCreateError, DataError, MissingError, UsageError, WriteError
from spsbench.hardware.files import sync
from spsbench.settings.records import Key, Record
from spsbench.store.folder import WHOLE, check_writable, record_logs, records_path, shard_name
from spsbench.store.log import encode, iterate
from spsbench.store.manifest import Manifest, refuse_differences
from spsbench.store.plausibility import impossible

NOTED = ("records", "traces")  # what a start's end notes in the manifest, of its own files


class Placed(NamedTuple):
    """A record and the start that made it: timings of different hardware are not pooled."""

    segment: int  # index into Manifest.segments
    record: Record


class Starts:
    """Which start made a line of a shard's log: the last one before it, of the line's machine."""

    def __init__(self, manifest: Manifest, shard: str) -> None:
        self.known: list[int] = []  # records that there were, at each start and at its end
        self._own: dict[str | None, list[tuple[int, int]]] = {}
        for index, segment in enumerate(manifest.segments):
            if segment["shard"] == shard:
                self.known.append(known_of(segment))
                own = self._own.setdefault(segment.get("machine"), [])
                own.append((segment["first"], index))

    def of(self, number: int, machine: str | None) -> int | None:
        """The index of the segment; None: there is none."""
        own = self._own.get(machine, [])
        place = bisect_right(own, number, key=lambda start: start[0]) - 1
        return own[place][1] if place >= 0 else None


class Once:
    """The generations met so far, each of which may be met again only unchanged."""

    def __init__(self) -> None:
        self.good: dict[Key, int] = {}  # key -> hash of what was measured
        self._failed: set[tuple[Key, int]] = set()

    def is_new(self, record: Record, path: Path) -> bool:
        """Whether this is the first time.

        Raises:
            DataError: a generation is there twice and differs; `path` says where.
        """
        mark = hash((tuple(record.tokens), tuple(record.rounds), record.text, record.error))
        if record.error is not None:  # attempts differ by right
            new = (record.key, mark) not in self._failed
            self._failed.add((record.key, mark))
            return new
        known = self.good.get(record.key)
        if known not in (None, mark):
            raise DataError(
                f"two measurements of {'/'.join(map(str, record.key))} ({path}): expected one, or "
                "copies of one. Leave one of the runs out"
            )
        self.good[record.key] = mark
        return known is None


def records(folder: Path) -> Iterator[Record]:
    """The records of a run, each generation once; those that only ever failed come last.

    Raises:
        MissingError: no run in `folder`, or a log that its manifest knows is gone.
        DataError: a damaged log, an impossible record, or a generation that is there twice and
            differs.
    """
    return (placed.record for placed in segmented(folder))


def segmented(folder: Path) -> Iterator[Placed]:
    """`records`, each with the segment that made it."""
    manifest = Manifest.load(folder)
    known = manifest.samples
    once = Once()
    failures: dict[Key, Placed] = {}
    for shard, path in logs_of(folder, manifest).items():
        starts = Starts(manifest, shard)
        number = -1
        for number, values in enumerate(iterate(path)):
            place = starts.of(number, values.get("machine"))
            record = read_record(values, path, number, known)
            if place is None:
                raise DataError(
                    f"record of no segment ({path}, line {number + 1}): expected its start in the "
                    "manifest. Restore the manifest from a copy, or start anew"
                )
            placed = Placed(place, record)
            if record.error is not None:
                failures[record.key] = placed
            elif once.is_new(record, path):
                yield placed
        refuse_loss(path, number + 1, starts.known)
    yield from (placed for key, placed in failures.items() if key not in once.good)


def check_whole(folder: Path) -> None:
    """Check that all records are there that the manifest of a run knows of.

    Raises:
        MissingError: no run, or a log that is gone. DataError: a lost end, or damage.
    """
    manifest = Manifest.load(folder)
    for shard, path in logs_of(folder, manifest).items():
        refuse_loss(path, sum(1 for _ in iterate(path)), Starts(manifest, shard).known)


def logs_of(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Shard name -> log, of all shards that the manifest knows to have begun.

    Raises:
        MissingError: one of them is not there.
    """
    logs = record_logs(folder)
    for segment in manifest.segments:
        name, begun = segment["shard"], segment.get("started")
        if name not in logs:
            raise MissingError(
                f"no records of shard {name} ({folder}, begun {begun}): "
                f"expected records-{name}.jsonl. Restore it from a copy, or make its "
                "records anew with --resume"
            )
    return logs


def known_of(segment: Mapping[str, Any]) -> int:
    """How many records the log of its shard had when a start ended, or at least when it began."""
    return max(int(segment["first"]), int(segment.get("records", 0)))


def refuse_loss(path: Path, count: int, known: Sequence[int]) -> None:
    """Check that a log still has the records that its shard is known to have had.

    Raises:
        DataError: it has fewer.
    """
    before = max(known, default=0)
    if count < before:
        raise DataError(
            f"{before - count} records are missing at the end ({path}, line {count + 1}): expected "
            f"{before} or more. Restore the file from a copy, or make them anew with --resume"
        )


def read_record(
    values: dict[str, Any], path: Path, number: int, samples: Collection[str] = ()
) -> Record:
    """The record in line `number` + 1 of a log of a run over `samples`, if these are known.

    Raises:
        DataError: it has other fields than this version writes, or values that cannot be true.
    """
    values.pop("attempt", None)
    values.pop("machine", None)
    try:
        record = Record.from_json(values)
        wrong = impossible(record, samples)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"foreign record ({path}, line {number + 1}: {error}): expected the fields that this "
            "version writes. Read it with the version that its manifest names"
        ) from error
    if wrong is not None:
        raise DataError(
            f"impossible record ({path}, line {number + 1}, {wrong}): expected what was measured. "
            "Restore the file from a copy, or start anew"
        )
    return record


def merge(folders: Sequence[Path], out: Path) -> Manifest:
    """Make one run of several of the same configuration, for instance shards of other machines.

    `out` appears whole or not at all. Scores are made again from the merged records.

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
        segments = _merge_logs(runs, records_path(draft, WHOLE))
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
    """Check that no run is named twice, by whatever path: nothing would be merged."""
    places: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in places:
            raise UsageError(
                f"one run twice ({places[place]}, {folder}): expected different ones. "
                "Name each once"
            )
        places[place] = folder


def _merge_logs(runs: dict[Path, Manifest], out: Path) -> list[dict[str, Any]]:
    """Write every record of `runs` once to `out`; the segments, as they lie there."""
    once = Once()
    segments: list[dict[str, Any]] = []
    count = 0
    with out.open("xb") as file:
        for folder, manifest in runs.items():
            known = manifest.samples
            for shard, path in logs_of(folder, manifest).items():
                own = [segment for segment in manifest.segments if segment["shard"] == shard]
                known_counts, number = [known_of(segment) for segment in own], -1
                for number, values in enumerate(iterate(path)):
                    while own and own[0]["first"] <= number:
                        place = {"shard": shard_name(WHOLE), "first": count}
                        start = {k: v for k, v in own.pop(0).items() if k not in NOTED}
                        segments.append(start | place)
                    if once.is_new(read_record(dict(values), path, number, known), path):
                        file.write(encode(count, values))
                        count += 1
                refuse_loss(path, number + 1, known_counts)
        file.flush()
        os.fsync(file.fileno())
    if segments:
        segments[-1]["records"] = count
    return segments
