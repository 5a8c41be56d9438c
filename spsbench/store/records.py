"""Reading runs: each generation once, whatever shards and attempts it took; and merging runs."""

import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import CannotCreateError, DataError, UsageError, WriteError
from spsbench.settings.records import Key, Record
from spsbench.store.atomic import sync_folder
from spsbench.store.folder import WHOLE, check_writable, record_logs, records_path, shard_name
from spsbench.store.log import encode, iterate
from spsbench.store.manifest import Manifest, refuse_differences


class Placed(NamedTuple):
    """A record and the start that made it: timings of different hardware are not pooled."""

    segment: int  # index into Manifest.segments
    record: Record


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
        MissingError: no run in `folder`.
        DataError: a damaged log, or a generation that is there twice and differs.
    """
    return (placed.record for placed in segmented(folder))


def segmented(folder: Path) -> Iterator[Placed]:
    """`records`, each with the segment that made it."""
    segments = Manifest.load(folder).segments
    once = Once()
    failures: dict[Key, Placed] = {}
    for shard, path in record_logs(folder).items():
        own = [(s["first"], index) for index, s in enumerate(segments) if s["shard"] == shard]
        starts = [first for first, _ in own]
        for number, values in enumerate(iterate(path)):
            record = read_record(values, path, number)
            place = bisect_right(starts, number) - 1
            if place < 0:
                raise DataError(
                    f"record of no segment ({path}, line {number + 1}): expected its start in the "
                    "manifest. Restore the manifest from a copy, or start anew"
                )
            placed = Placed(own[place][1], record)
            if record.error is not None:
                failures[record.key] = placed
            elif once.is_new(record, path):
                yield placed
    yield from (placed for key, placed in failures.items() if key not in once.good)


def read_record(values: dict[str, Any], path: Path, number: int) -> Record:
    """The record in line `number` + 1 of a log.

    Raises:
        DataError: it has other fields than this version writes.
    """
    values.pop("attempt", None)
    try:
        return Record.from_json(values)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"foreign record ({path}, line {number + 1}: {error}): expected the fields that this "
            "version writes. Read it with the version that its manifest names"
        ) from error


def merge(folders: Sequence[Path], out: Path) -> Manifest:
    """Make one run of several of the same configuration, for instance shards of other machines.

    `out` appears whole or not at all. Scores are made again from the merged records.

    Raises:
        UsageError: no folders.
        MismatchError: the configurations differ.
        DataError: damage, or a generation measured twice with different results.
        CannotCreateError, PermissionDeniedError, WriteError: `out` cannot be written or is in use.
    """
    if not folders:
        raise UsageError("no runs to merge: expected one or more. Name their folders")
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
        segments = _merge_logs(runs, records_path(draft, WHOLE))
        cells = {name: cell for run in runs.values() for name, cell in run.cells.items()}
        merged = replace(first, cells=cells, segments=tuple(segments))
        merged.save(draft)
        draft.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise WriteError.of(error, out) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return merged


def _merge_logs(runs: dict[Path, Manifest], out: Path) -> list[dict[str, Any]]:
    """Write every record of `runs` once to `out`; the segments, as they lie there."""
    once = Once()
    segments: list[dict[str, Any]] = []
    count = 0
    with out.open("xb") as file:
        for folder, manifest in runs.items():
            for shard, path in record_logs(folder).items():
                own = [segment for segment in manifest.segments if segment["shard"] == shard]
                for number, values in enumerate(iterate(path)):
                    while own and own[0]["first"] <= number:
                        place = {"shard": shard_name(WHOLE), "first": count}
                        segments.append(own.pop(0) | place)
                    if once.is_new(read_record(dict(values), path, number), path):
                        file.write(encode(count, values))
                        count += 1
        file.flush()
        os.fsync(file.fileno())
    return segments
