"""Rows of a data file: JSONL, text, either gzipped, parquet, or a folder that `datasets` has saved.

The first bytes of a file decide its format, not its name. Errors name the place in the file;
nothing is skipped or repaired. `fingerprint` names a set of prompts.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from msgspec import json

from spsbench.errors import DataError, first_line
from spsbench.untrusted import open_untrusted

DATA = "JSONL, JSONL.gz or parquet"
LINE_LIMIT = 16 << 20  # bytes
SIZE_LIMIT = 1 << 30  # bytes when unpacked: rows are kept in memory, and a gzip may be a bomb


Item = TypeVar("Item", bound=Any)
"""An item with an `id`."""


class Row(NamedTuple):
    """An object of a file, with its place."""

    where: str  # file and line, for messages
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """Return the text under `key`.

        Raises:
            DataError: the value is missing, or no text.
        """
        value = self.values.get(key)
        if not isinstance(value, str):
            problem = f"{key!r} is {type(value).__name__}" if key in self.values else f"no {key!r}"
            keys = ", ".join(map(repr, self.values))[:200]
            raise DataError(
                f"{problem} ({self.where}): expected a text. The keys there are {keys or 'none'}"
            )
        return value

    def name(self, key: str) -> str:
        """Return the id under `key`: a non-empty text, or an integer.

        Raises:
            DataError: the value is of another kind.
        """
        value = self.values.get(key)
        if type(value) is int:
            return str(value)
        if not self.text(key):
            raise DataError(f"{key!r} is empty ({self.where}): expected an id. Give it one")
        return self.text(key)


def rows(path: Path, text: str | None = None) -> Generator[Row]:
    """Yield the rows of a file in order.

    Args:
        path: file or folder.
        text: key of a line that is plain text, one that does not begin with `{`; None: such lines
            are refused.

    Raises:
        SpsError: as `open_untrusted`. DataError: too large, or of another format; names the line.
    """
    if path.is_dir():
        yield from _saved(path)
        return
    with open_untrusted(path, DATA) as (file, _):
        if not file.peek(4).startswith(b"PAR1"):  # type: ignore[attr-defined]
            yield from _lines(file, path, text)
            return
    try:
        yield from _parquet(path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"unreadable ({path}: {first_line(error)}): expected {DATA}. Check the file"
        ) from error


def distinct(entries: Iterable[tuple[str, Item]]) -> tuple[list[Item], int]:
    """Return the distinct items of (place, item) pairs, and the number of repetitions dropped.

    Raises:
        DataError: two different items have the same id.
    """
    first_of: dict[str, tuple[str, Item]] = {}
    repeated = 0
    for where, item in entries:
        first, other = first_of.setdefault(item.id, (where, item))
        if other != item:
            raise DataError(
                f"id {item.id!r} again, with other content ({where}, first {first}): "
                "expected one content an id. Rename one of them"
            )
        repeated += first != where
    return [item for _, item in first_of.values()], repeated


def _lines(file: IO[bytes], path: Path, text: str | None) -> Iterator[Row]:
    number, size = 0, 0
    while line := file.readline(LINE_LIMIT + 1):
        number, size = number + 1, size + len(line)
        where = f"{path}:{number}"
        if len(line) > LINE_LIMIT:
            raise DataError(
                f"a line longer than {LINE_LIMIT >> 20} MiB ({where}): expected one sample a line. "
                "Split it, or check that this is JSONL"
            )
        _check_size(size, path)
        if line.strip():
            yield Row(where, _values(line, where, text))


def _values(line: bytes, where: str, text: str | None) -> dict[str, Any]:
    try:
        if text is not None and not line.lstrip().startswith(b"{"):
            return {text: line.rstrip(b"\r\n").decode()}
        return json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else "; the file may have been cut off here"
        raise DataError(
            f"{first_line(error)} ({where}{torn}): expected one JSON object a line, in UTF-8. "
            "Correct the line"
        ) from error


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # it comes with `datasets`

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        _check_size(sum(file.metadata.row_group(group).total_byte_size for group in groups), path)
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1000))
        yield from _numbered(chain.from_iterable(batches), path)


def _saved(path: Path) -> Iterator[Row]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except FileNotFoundError:
        saved = None
    if not isinstance(saved, datasets.Dataset):
        raise DataError(
            f"a folder that is no data set ({path}): expected a file, or a folder that "
            "`Dataset.save_to_disk` wrote. Name one split"
        )
    yield from _numbered(saved, path)


def _numbered(values: Iterable[dict[str, Any]], path: Path) -> Iterator[Row]:
    for number, row in enumerate(values, 1):
        yield Row(f"{path}, row {number}", row)


def _check_size(size: int, path: Path) -> None:
    if size > SIZE_LIMIT:
        raise DataError(
            f"more than {SIZE_LIMIT >> 30} GiB of data ({path}): expected a smaller file, as its "
            "rows are kept in memory. Split it"
        )


def fingerprint(texts: Iterable[str]) -> str:
    """Return the first 8 hex digits of the digest of the texts, a short name for them."""
    return digest_of(texts)[:8]


def digest_of(texts: Iterable[str]) -> str:
    """Return the SHA-256 of the texts, each preceded by its length."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
