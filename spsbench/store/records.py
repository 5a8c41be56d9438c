"""Records of runs: reading each generation once over shards and attempts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.errors import DataError, MissingError
from spsbench.foreign import cut
from spsbench.settings.records import Key, Record
from spsbench.store.log import iterate
from spsbench.store.manifest import Manifest
from spsbench.store.run_folder import record_logs

OF_LINE = ("attempt", "machine")  # fields of a line that are none of the record


class Placed(NamedTuple):
    """A record and its start: timings of different hardware are not pooled."""

    segment: int  # index into Manifest.segments
    record: Record


class Once:
    """The generations read so far; a repeated generation must be unchanged."""

    def __init__(self) -> None:
        self.good: dict[Key, int] = {}  # key -> hash of the measurements
        self._failed: set[tuple[Key, int]] = set()

    def is_new(self, record: Record, path: Path) -> bool:
        """Return whether the generation is new.

        Raises:
            DataError: the generation is repeated and differs; `path` is for the message.
        """
        mark = hash((tuple(record.tokens), tuple(record.rounds), record.text, record.error))
        if record.error is not None:  # failed attempts may differ
            new = (record.key, mark) not in self._failed
            self._failed.add((record.key, mark))
            return new
        is_new = record.key not in self.good
        if self.good.setdefault(record.key, mark) != mark:
            raise DataError(
                f"two measurements of {'/'.join(map(str, record.key))} ({path}): expected one, or "
                "copies of one. Leave one of the runs out"
            )
        return is_new


def records(folder: Path) -> Iterator[Record]:
    """Yield the records of a run, each generation once; generations that always failed come last.

    Raises:
        MissingError: no records in `folder`.
        DataError: a damaged log, an invalid record, or a repeated generation that differs.
    """
    return (record for record, *_ in _located(folder))


def segmented(folder: Path) -> Iterator[Placed]:
    """Yield `records`, each with its segment."""
    manifest = Manifest.load(folder)
    for record, shard, number, machine in _located(folder):
        yield Placed(manifest.start_of(shard, number, machine), record)


def _located(folder: Path) -> Iterator[tuple[Record, str, int, str | None]]:
    """Yield `records`, each with its shard, its line and the machine that the line names."""
    once, failures = Once(), dict[Key, tuple[Record, str, int, str | None]]()
    for shard, path in logs_of(folder).items():
        for number, values in enumerate(iterate(path)):
            record = read_record(values, path)
            located = record, shard, number, values.get("machine")
            if record.error is not None:
                failures[record.key] = located
            elif once.is_new(record, path):
                yield located
    yield from (located for key, located in failures.items() if key not in once.good)


def logs_of(folder: Path) -> dict[str, Path]:
    """Return shard name -> log of all shards that have begun, in order.

    Raises:
        MissingError: none.
    """
    logs = record_logs(folder) if folder.is_dir() else {}
    if not logs:
        raise MissingError(
            f"no records ({folder}): expected records-*.jsonl. Restore them from a copy, or make "
            "them with `resume`"
        )
    return logs


def read_record(values: Mapping[str, Any], path: Path) -> Record:
    """Return the record of a line of the log at `path`.

    Raises:
        DataError: fields differ from this version's format, or contradict each other.
    """
    try:
        fields = {name: value for name, value in values.items() if name not in OF_LINE}
        return Record.from_json(fields)
    except ValueError as error:
        raise DataError(
            f"foreign record ({path}, {_shortened(values)}: {error}): expected what this version "
            "writes. Restore the file from a copy, or read it with the version that its manifest "
            "names"
        ) from error


def _shortened(values: Mapping[str, Any]) -> str:
    return cut("/".join(str(values.get(name)) for name in ("cell", "sample", "repeat")))
