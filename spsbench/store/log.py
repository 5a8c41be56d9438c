"""An append-only log of JSON objects, one a line, that detects damage.

Each line carries its number and the CRC-32 of the preceding part of the line. One fsync a record: a
log killed at any time has lost at most the record in progress. A torn tail is cut (and kept in a
file beside the log); damage anywhere else is refused with its line, never skipped.
"""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

from spsbench.errors import DataError, WriteError
from spsbench.foreign import reading
from spsbench.hardware.files import open_file, sync
from spsbench.store.atomic import next_free, replace_file
from spsbench.store.lock import Lock

MARK = b',"crc":"'
TAIL = len(MARK) + len('01234567"}\n')
OWN = {"n", "crc"}  # fields that the log adds to a line
GO_ON = "What was written before is kept: make room and continue with `resume`"


class Log:
    """A log with exclusive append access for this process. Use `Log` as a context manager."""

    def __init__(
        self, path: Path, on_record: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """Open or create `path`, take its lock, cut a torn tail, and pass records to `on_record`.

        Raises:
            InUseError: another process holds the lock.
            DataError: damage before the tail; names line and byte.
            WriteError: the file cannot be created or cut.
        """
        self.path = path
        self.count = 0  # records in the log
        self._lock = Lock(path)
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            sync(path.parent)
            self._size = 0
            for end, values in entries(path):
                self._size, self.count = end, self.count + 1
                if on_record is not None:
                    on_record(values)
            self._cut()
        except OSError as error:
            self.close()
            raise WriteError.of(error, path, GO_ON) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; no more records can be appended."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.close()

    def append(self, values: Mapping[str, Any]) -> None:
        """Write one record and wait until the record is on disk.

        Raises:
                WriteError: the record could not be written whole. The log is unchanged, and closed:
                after a failed fsync the state of the disk is unknown, so the next start reads the
                log again.
            ValueError: NaN or infinity in the record, or a field reserved for the log.
        """
        line = encode(self.count, values)
        try:
            self._check()
            unwritten = line
            while unwritten:  # a full disk writes a part first, and raises at the next call
                unwritten = unwritten[os.write(self._file, unwritten) :]
            os.fsync(self._file)
        except OSError as error:
            if self._file >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
                self.close()
            raise WriteError.of(error, self.path, GO_ON) from error
        self.count += 1
        self._size += len(line)

    def _check(self) -> None:
        """Check that no other process has removed or changed the file, which would lose records."""
        state = os.fstat(self._file)
        if state.st_nlink == 0:
            raise OSError(errno.ENOENT, "the file was removed while it was written")
        if state.st_size != self._size:
            self._size = state.st_size  # data of another program must not be cut
            raise OSError(errno.EBUSY, "another program changed the file")

    def _cut(self) -> None:
        size = os.fstat(self._file).st_size
        if size == self._size:
            return
        torn = os.pread(self._file, size - self._size, self._size)
        replace_file(next_free(self.path, "torn"), torn)
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)


class HeadedLog(Log):
    """A log whose first record is a header: the settings that all other records depend on."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        check: Callable[[dict[str, Any]], None],
        on_record: Callable[[dict[str, Any]], None],
    ) -> None:
        """Open `path` to go on with it, or create it with `header`.

        Args:
            path: the file.
            header: fields of the first record of a new log.
            check: called on the header of an old log, before its records; raises if the log is
                another one.
            on_record: called on every record of an old log.

        Raises:
            SpsError: whatever `Log` or `check` raise.
        """
        readers = chain([check], repeat(on_record))
        super().__init__(path, lambda values: next(readers)(values))
        if self.count == 0:
            self.append(header)


def iterate(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the checked records of a log, without a torn tail.

    Raises:
        DataError: damage before the tail; names line and byte.
        SpsError: the file is missing or cannot be read.
    """
    with reading(path, "a log that `sps` wrote"):
        for _, values in entries(path):
            yield values


def entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record with the byte at which it ends. Raises like `iterate`, and OSError."""
    with open_file(path) as file:
        yield from entries_in(file, path)


def entries_in(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield what `entries` yields, of the content of `path`."""
    end = 0
    for number, line in enumerate(file):
        values = decode(line, number)
        if values is None:
            if is_torn(line, file):
                return
            raise DataError(
                f"damaged record ({path}, line {number + 1}, byte {end}): expected record "
                f"{number} with its checksum. Restore the file from a copy, or start anew"
            )
        end += len(line)
        yield end, values


def encode(number: int, values: Mapping[str, Any]) -> bytes:
    """Return the line of a record: ASCII JSON with its number first and its CRC last."""
    if not OWN.isdisjoint(values):
        raise ValueError(f"{sorted(OWN & values.keys())}: fields of the log itself")
    body = json.dumps({"n": number, **values}, allow_nan=False, separators=(",", ":"))
    head = body[:-1].encode("ascii")
    return head + MARK + f'{zlib.crc32(head):08x}"}}\n'.encode()


def decode(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the record of a line; None unless the line is record `number`, whole and unchanged."""
    head, mark, tail = line[:-TAIL], line[-TAIL : -TAIL + len(MARK)], line[-TAIL + len(MARK) :]
    if mark != MARK or tail != f'{zlib.crc32(head):08x}"}}\n'.encode():
        return None
    try:
        values = json.loads(head + b"}")
    except (ValueError, RecursionError):  # the checksum is right: the line was edited by hand
        return None
    return values if isinstance(values, dict) and values.pop("n", None) == number else None


def is_torn(line: bytes, file: BinaryIO) -> bool:
    """Return whether `line`, just read from `file`, is torn: no newline, or zeros in the last line.

    A power cut may leave the end of a write without its beginning, which then reads as zeros. A
    single zero is a flipped bit: JSON holds none.
    """
    return not line.endswith(b"\n") or (b"\0\0" in line and not file.read(1))
