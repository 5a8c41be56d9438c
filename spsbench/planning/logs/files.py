"""Files, pipes and folders of logs: the values of their lines, rows or documents, one by one."""

import codecs
import errno
import io
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from spsbench.errors import DataError, first_line
from spsbench.hardware.files import SILENCE
from spsbench.planning.logs.chats import role_of
from spsbench.tasks.reader import TABLES, read_rows
from spsbench.untrusted import (
    MAX_VALUES,
    FieldError,
    NotJSONError,
    cut,
    open_untrusted,
    parse_json,
    reading,
)

LINE_BYTES = 64 << 20  # most bytes of a line; a longer one is left out
BLANKS = re.compile(r"[ \t\r\n,]*+")
CHUNK = 1 << 20  # bytes of a document that are read at once
WHAT = "a log of served requests, or the folder of a run"
PARQUET = b"PAR1"
COUNTED = ("token", "usage")  # columns of a CSV that hold numbers

LeaveOut = Callable[[str], None]
"""Counts a line that holds no value, with its reason."""


@contextmanager
def open_log(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file, or standard input as `-`; as `open_untrusted`."""
    if str(path) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    with reading(path, WHAT), writer_of(path), open_untrusted(path, WHAT) as files:
        yield files


@contextmanager
def writer_of(path: Path) -> Iterator[None]:
    """Wait for a named pipe's writer, and hold the pipe open in this block; skip other files.

    TimeoutError: no writer for `SILENCE` seconds.
    """
    if not path.is_fifo():
        yield
        return
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        if not poll.poll(1000 * SILENCE):
            raise TimeoutError(errno.ETIMEDOUT, f"no writer for {SILENCE:g} s")
        yield


def values_of(file: IO[bytes], path: Path, leave_out: LeaveOut) -> Iterator[tuple[int, Any]]:
    """Yield (number from 0, value): of lines, of rows of a table, or of items of a document.

    `leave_out` is called with the reason for each line without a value, and for an empty file.
    DataError: a table or document that cannot be read.
    """
    number, line = 0, file.readline(LINE_BYTES).removeprefix(codecs.BOM_UTF8)
    while line and not line.strip():
        number, line = number + 1, file.readline(LINE_BYTES)
    if not line:
        leave_out(f"an empty file ({cut(path.name)})")
    elif line.startswith(PARQUET) or TABLES.keys() & {*path.suffixes}:
        yield from enumerate(table_rows(path))
    elif is_document(line):
        yield from enumerate(conversations(document_values(line, file, path)))
    else:
        yield from line_values(line, number, file, leave_out)


def is_document(line: bytes) -> bool:
    """Return whether a first line begins a document: `{` alone, or a list that is no whole line."""
    start = line.strip()
    if start[:1] != b"[":
        return start == b"{"
    try:
        parse_json(line, strict=False, limit=LINE_BYTES, values=MAX_VALUES)
    except FieldError:
        return True
    return False


def line_values(
    line: bytes, number: int, file: IO[bytes], leave_out: LeaveOut
) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of lines; a list's items one by one, each with the next number.

    A list that `conversations` takes for one is one value. `line` is the first line, with its
    `number`; others come from `file`. Blank lines are skipped, and counted. `leave_out` is called
    with the reason alone for lines that are too long or no JSON.
    """
    while line:
        if len(line) == LINE_BYTES and not line.endswith(b"\n"):
            leave_out(f"a line above {LINE_BYTES >> 20} MiB")
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES)
        elif line.strip():
            try:
                value = parse_json(line, strict=False, limit=LINE_BYTES)
            except NotJSONError:
                is_text = line.lstrip()[:1] not in b"[{"
                cut_off = "" if line.endswith(b"\n") else " (the last line, cut off)"
                leave_out(
                    "plain text, as servers log it, no JSON" if is_text else f"no JSON{cut_off}"
                )
            except FieldError as error:
                leave_out(str(error))
            else:
                items = [*conversations(iter(value))] if isinstance(value, list) else [value]
                yield from enumerate(items, number)
                number += max(len(items) - 1, 0)
        number += 1
        line = file.readline(LINE_BYTES)


def conversations(values: Iterator[Any]) -> Iterator[Any]:
    """Yield the values of a list one by one; or all in one list, a conversation.

    It is one where the first is a message, though not the assistant's.
    """
    first = next(values, None)
    if role_of(first) in (None, "assistant"):
        yield from [] if first is None else [first]
        yield from values
    else:
        yield [first, *values]


def table_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of CSV or parquet as objects; DataError: standard input, or a bad table.

    Names in title case (`Prompt`), no others, are put in lower case; counts of tokens are numbers.
    """
    if str(path) == "-":
        raise DataError("a table (standard input): expected a file. Name it")
    for row in read_rows(path):
        values = {}
        for name, cell in row.values.items():
            is_count = any(word in name.lower() for word in COUNTED) and str(cell).isdecimal()
            values[name.lower() if name.istitle() else name] = int(cell) if is_count else cell
        yield values


def document_values(first: bytes, file: IO[bytes], path: Path) -> Iterator[Any]:
    """Yield the values of a JSON document, those of a list one by one: one is in memory at a time.

    `first` has the bytes that were read from `file` already. DataError, with `path`: no JSON, a
    list without an end, or a value beyond `LINE_BYTES` or `MAX_VALUES`.
    """
    decode = codecs.getincrementaldecoder("utf-8")().decode
    scan = json.JSONDecoder().raw_decode
    text, at, ended, is_open = "", 0, False, False
    start = io.BytesIO(first)
    piece = start.read(CHUNK)
    try:
        while True:
            text, at, ended = text[at:] + decode(piece, not piece), 0, not piece
            if len(text) > LINE_BYTES or sum(map(text.count, ",[{")) > MAX_VALUES:
                raise FieldError(f"a value above {LINE_BYTES >> 20} MiB or {MAX_VALUES:,} values")
            while (at := BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                if text[at] == ("]" if is_open else "["):
                    at, is_open = at + 1, not is_open
                    continue
                try:
                    value, at = scan(text, at)
                except ValueError:
                    if ended:
                        raise
                    break
                yield value
            if ended:
                break
            size = max(CHUNK, len(text) - at)
            piece = start.read(size) or file.read(size)
        if is_open:
            raise FieldError("its list has no end")
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"no JSON ({cut(str(path))}: {first_line(error)}): expected a list of requests, or "
            "one a line, as jq -c '.[]' writes it"
        ) from error
