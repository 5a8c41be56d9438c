"""Records of runs: reading each generation once over shards and attempts; texts withheld."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import ValidationError, convert

from spsbench.errors import DataError, MissingError
from spsbench.settings.records import Key, Record
from spsbench.store.atomic import replace_file
from spsbench.store.lock import Lock
from spsbench.store.log import encode_record, iterate
from spsbench.store.run_folder import Shard, record_logs, records_path
from spsbench.store.starts import Note, Start
from spsbench.untrusted import cut

MARK = "sha256:"
DIGITS = 32
OF_LINE = ("attempt", "machine")  # fields of a line that are none of the record


class Placed(NamedTuple):
    """A record and its start: timings of different hardware are not pooled."""

    start: Start
    record: Record


class LogReader:
    """The lines of a shard's log, taken in order: starts, notes of starts, and records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts: list[Start] = []
        self.latest: dict[str | None, Start] = {None: Start()}  # by machine
        self.count = 0  # records

    def take(self, values: Mapping[str, Any]) -> Placed | None:
        """Return a line's record with its start, or None of a line that is a start or a note.

        They go to `starts` and `latest`. DataError: another line, or no start of its machine.
        """
        try:
            if "start" in values:
                start = convert(values["start"], Start)
                self.starts.append(start)
                self.latest[start.machine] = start
                return None
            if "note" in values:
                self.latest[None].add(convert(values["note"], Note))
                return None
            start = self.latest[values.get("machine")]
            fields = {name: value for name, value in values.items() if name not in OF_LINE}
            record = Record.from_json(fields)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            key = cut("/".join(str(values.get(name)) for name in ("cell", "sample", "repeat")))
            raise DataError(
                f"foreign record ({self.path}, {key}: {error}): expected what this version "
                "writes. Restore the file from a copy, or read it with the version that its "
                "manifest names"
            ) from error
        self.count += 1
        return Placed(start, record)


class Once:
    """The generations read so far; a repeated generation must be unchanged."""

    def __init__(self) -> None:
        self.good: dict[Key, int] = {}  # key -> hash of the measurements
        self._failed: set[tuple[Key, int]] = set()

    def is_new(self, record: Record, path: Path) -> bool:
        """Note a generation; return whether it is new. DataError: a good one unlike its first.

        A failure is new if no other one of the same generation had its text and error.
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
    """Yield the records of a run, each generation once; those that always failed come last."""
    return (placed.record for placed in placed_records(folder))


def placed_records(folder: Path) -> Iterator[Placed]:
    """Yield each generation once with its start, to which later lines still add notes.

    Those that always failed come last. MissingError: no logs. DataError: damage, unlike copies.
    """
    once, failures = Once(), dict[Key, Placed]()
    for path in logs_of(folder).values():
        reader = LogReader(path)
        for placed in filter(None, map(reader.take, iterate(path))):
            if placed.record.error is not None:
                failures[placed.record.key] = placed
            elif once.is_new(placed.record, path):
                yield placed
    yield from (placed for key, placed in failures.items() if key not in once.good)


def logs_of(folder: Path) -> dict[str, Path]:
    """Map the shards that have begun to their logs, in order; MissingError: there are none."""
    logs = record_logs(folder) if folder.is_dir() else {}
    if not logs:
        raise MissingError(
            f"no records ({folder}): expected records-*.jsonl. Restore them from a copy, or make "
            "them with `resume`"
        )
    return logs


def withhold_texts(folder: Path, shard: Shard) -> None:
    """Replace token ids and text of each record of a shard by a digest, in place.

    For prompts that may be measured with and not passed on: what a model writes about an article
    quotes it. Equal texts remain equal, and other fields stay. InUseError: the log has a writer.
    """
    path = records_path(folder, shard)
    with Lock(path):
        lines = []
        for number, values in enumerate(iterate(path)):
            text, tokens = values.get("text"), values.get("tokens")  # none in a line of a start
            if tokens or (text and not text.startswith(MARK)):
                written = json.dumps(tokens or text).encode()
                values |= {"tokens": [], "text": f"{MARK}{sha256(written).hexdigest()[:DIGITS]}"}
            lines.append(encode_record(number, values))
        replace_file(path, b"".join(lines))


def is_withheld(record: Record) -> bool:
    """Return whether a record has a digest in the place of its text."""
    return not record.tokens and record.text.startswith(MARK)
