"""An append-only log of JSON objects, one a line, that detects damage.

Each line carries its number and the CRC-32 of the preceding part of the line. One fsync a record: a
log killed at any time has lost at most the record in progress. A torn tail is cut (and kept in a
file next to the log); damage anywhere else is refused with its line, never skipped.
"""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, Self

from spsbench.errors import DataError, WriteError
from spsbench.hardware.files import open_file, sync, write_whole
from spsbench.store.atomic import next_free
from spsbench.store.lock import Lock
from spsbench.untrusted import open_untrusted, reading

MARK = b',"crc":"'
TAIL = len(MARK) + len('01234567"}\n')
OWN = {"n", "crc"}  # fields that the log adds to a line
GO_ON = "What was written before is kept: make room and run the command again"
PACKED = ".gz", ".xz"  # suffixes of logs that are only read


class Log:
    """A log with exclusive append access for this process. Use `Log` as a context manager."""

    def __init__(
        self, path: Path, on_record: Callable[[dict[str, Any]], None] = lambda values: None
    ) -> None:
        """Open or create `path`, cut a torn tail, feed `on_record`; SpsError: in use, damaged."""
        self.path = path
        self.count = 0  # records in the log
        self._size = 0
        self._lock = Lock(path)
        try:
            sync(path.parent)
            for end, values in record_ends(path):
                self._size, self.count = end, self.count + 1
                on_record(values)
            self._cut()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise WriteError.of(error, path, GO_ON) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; no more records can be appended."""
        self._lock.close()

    def append(self, values: Mapping[str, Any]) -> None:
        """Write one record and wait for the disk; WriteError: cut off again, and the log closed."""
        line = encode_record(self.count, values)
        file = self._lock.file
        try:
            self._check()
            unwritten = line
            while unwritten:  # a full disk writes a part first, and raises at the next call
                unwritten = unwritten[os.write(file, unwritten) :]
            os.fsync(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._size)
            self.close()  # what a disk holds after a failed fsync is for the next start to read
            raise WriteError.of(error, self.path, GO_ON) from error
        self.count += 1
        self._size += len(line)

    def _check(self) -> None:
        """Raise OSError if another process removed or changed the file: records would be lost."""
        state = os.fstat(self._lock.file)
        if state.st_nlink == 0:
            raise OSError(errno.ENOENT, "the file was removed while it was written")
        if state.st_size != self._size:
            self._size = state.st_size  # data of another program must not be cut
            raise OSError(errno.EBUSY, "another program changed the file")

    def _cut(self) -> None:
        file = self._lock.file
        if torn := os.pread(file, os.fstat(file).st_size, self._size):
            write_whole(next_free(self.path, "torn"), torn)
            os.ftruncate(file, self._size)
            os.fsync(file)


class HeadedLog(Log):
    """A log whose first record is a header: the settings that all other records depend on."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        check: Callable[[dict[str, Any]], None],
        on_record: Callable[[dict[str, Any]], None],
    ) -> None:
        """Create `path` with `header`, or `check` the header that is there, before its records."""
        readers = chain([check], repeat(on_record))
        super().__init__(path, lambda values: next(readers)(values))
        if self.count == 0:
            self.append(header)


def iterate(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the checked records of a log, without a torn tail; SpsError: damaged or unreadable."""
    with reading(path, "a log that sps wrote"):
        for _, values in record_ends(path):
            yield values


def record_ends(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `entries_in` a log; DataError: damage. Unreadable: OSError; if packed, SpsError."""
    if path.suffix in PACKED:
        with open_untrusted(path, "a log that sps wrote") as (unpacked, _):
            yield from entries_in(unpacked, path)
        return
    with open_file(path) as file:
        yield from entries_in(file, path)


def entries_in(file: IO[bytes], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's end in bytes and record, up to an `is_torn` line; DataError: damage."""
    end = 0
    for number, line in enumerate(file):
        if (values := decode_record(line, number)) is None:
            if is_torn(line, file):
                return
            raise DataError(
                f"damaged record ({path}, line {number + 1}, byte {end}): expected record "
                f"{number} with its checksum. Restore the file from a copy, or start anew"
            )
        end += len(line)
        yield end, values


def encode_record(number: int, values: Mapping[str, Any]) -> bytes:
    """Return a record's line: JSON with number first, CRC last; ValueError: `values` has those."""
    if not OWN.isdisjoint(values):
        raise ValueError(f"{sorted(OWN & values.keys())}: fields of the log itself")
    body = json.dumps({"n": number, **values}, allow_nan=False, separators=(",", ":"))
    head = body[:-1].encode("ascii")
    return head + MARK + f'{zlib.crc32(head):08x}"}}\n'.encode()


def decode_record(line: bytes, number: int) -> dict[str, Any] | None:
    """Return a line's record without `n` and `crc`; None unless whole, with `number`, from 0."""
    head, mark, tail = line[:-TAIL], line[-TAIL : -TAIL + len(MARK)], line[-TAIL + len(MARK) :]
    if mark != MARK or tail != f'{zlib.crc32(head):08x}"}}\n'.encode():
        return None
    try:
        values = json.loads(head + b"}")
    except (ValueError, RecursionError):  # the checksum is right: the line was edited by hand
        return None
    return values if isinstance(values, dict) and values.pop("n", None) == number else None


def is_torn(line: bytes, file: IO[bytes]) -> bool:
    """Return whether `line`, just read from `file`, is torn: no newline, or zeros in the last line.

    A power cut may leave the end of a write without its beginning, which then reads as zeros. A
    single zero is a flipped bit: JSON holds none.
    """
    return not line.endswith(b"\n") or (b"\0\0" in line and not file.read(1))
