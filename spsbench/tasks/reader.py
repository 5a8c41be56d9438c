"""Rows of a data file: JSONL, a JSON list, CSV, text, parquet, or a folder that `datasets` loads.

The first bytes of a file decide its format, not its name, but for CSV and TSV; all but parquet may
be gzipped. Errors name the place in the file; nothing is skipped or repaired.
"""

import csv
import hashlib
import io
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from msgspec import json

from spsbench.errors import DataError, UnavailableError, first_line
from spsbench.untrusted import open_untrusted

DATA = "JSONL, JSONL.gz, CSV or parquet"
FOREIGN = {b"#!": "a script", b"%PDF": "a PDF"}  # first bytes of files without prompts
TABLES = {".csv": ",", ".tsv": "\t"}
LINE_LIMIT = 16 << 20  # bytes
SIZE_LIMIT = 1 << 30  # bytes when unpacked: rows are kept in memory, and a gzip may be a bomb


Item = TypeVar("Item", bound=Any)
"""An item with an `id`."""


class FileRow(NamedTuple):
    """An object of a file, with its place."""

    where: str  # file and line, for messages
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """Return the text under `key`; DataError: it is missing, or no text."""
        value = self.values.get(key)
        if not isinstance(value, str):
            problem = f"{key!r} is {type(value).__name__}" if key in self.values else f"no {key!r}"
            keys = ", ".join(map(repr, self.values))[:200]
            raise DataError(
                f"{problem} ({self.where}): expected a text. The keys there are {keys or 'none'}"
            )
        return value

    def name(self, key: str) -> str:
        """Return the id under `key`, a text or an integer, as a str; DataError: neither, or ""."""
        value = self.values.get(key)
        if type(value) is int:
            return str(value)
        if not self.text(key):
            raise DataError(f"{key!r} is empty ({self.where}): expected an id. Give it one")
        return self.text(key)


def read_rows(path: Path, text: str | None = None) -> Generator[FileRow]:
    """Yield the rows of a file, or of a folder that `datasets` loads, in order, as it is read.

    The first bytes tell a format, the suffix CSV and TSV. `text`: the key for a line that is plain
    text, or a JSON string; None: such lines are refused. SpsError: as `open_untrusted`, or as
    `dataset_rows`. DataError: too large, or of another format; it names the line.
    """
    if path.is_dir():
        yield from dataset_rows(str(path))
        return
    with open_untrusted(path, DATA) as (file, _):
        start = file.peek(4)[:4]  # type: ignore[attr-defined]
        if kinds := [kind for mark, kind in FOREIGN.items() if start.startswith(mark)]:
            raise DataError(f"{kinds[0]} ({path}): expected {DATA}. Name another file")
        if start != b"PAR1":
            table = [TABLES[suffix] for suffix in path.suffixes[-2:] if suffix in TABLES]
            yield from _table(file, path, *table) if table else _json_or_lines(file, path, text)
            return
    try:
        yield from _parquet(path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"unreadable ({path}: {first_line(error)}): expected {DATA}. Check the file"
        ) from error


def drop_repeated(entries: Iterable[tuple[str, Item]]) -> tuple[list[Item], int]:
    """Return the distinct items of (place, item) pairs, in order, and how many equal others came.

    DataError, with both places: two different items have the same id.
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


def _json_or_lines(file: IO[bytes], path: Path, text: str | None) -> Iterator[FileRow]:
    """Yield items of a JSON list up to `LINE_LIMIT`, else rows of lines; DataError: bad rows."""
    start, items = b"", None
    if file.peek(1 << 10).lstrip()[:1] == b"[":  # type: ignore[attr-defined]
        start = file.read(LINE_LIMIT) + file.readline(LINE_LIMIT + 1)
        with suppress(ValueError, RecursionError):
            items = json.decode(start, type=list[Any])
    if items is None:
        if start.split(b"\n", 1)[0].strip() == b"[":
            limit = f"expected JSON of at most {LINE_LIMIT >> 20} MiB, or one item a line"
            raise DataError(f"a list that cannot be read whole ({path}): {limit}. Split it")
        lines = chain(io.BytesIO(start), iter(lambda: file.readline(LINE_LIMIT + 1), b""))
        yield from _lines(lines, path, text)
    for number, item in enumerate(items or (), 1):
        yield _row(item, f"{path}, item {number}", text)


def _table(file: IO[bytes], path: Path, delimiter: str) -> Iterator[FileRow]:
    """Yield a CSV's rows, keys by its first line, without empty fields; DataError: malformed."""
    lines = (line.decode() for line in iter(lambda: file.readline(LINE_LIMIT + 1), b""))
    table = csv.DictReader(lines, delimiter=delimiter, strict=True)
    size = 0
    try:
        for row in table:
            if None in row or None in row.values():
                raise csv.Error(f"other than {len(table.fieldnames or ())} fields")
            size += sum(map(len, row.values()))
            _check_size(size, path)
            yield FileRow(f"{path}:{table.line_num}", {name: x for name, x in row.items() if x})
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"{first_line(error)} ({path}:{table.line_num}): expected a table in UTF-8, whose "
            "first line names its fields. Correct the file"
        ) from error


def _lines(lines: Iterable[bytes], path: Path, text: str | None) -> Iterator[FileRow]:
    """Yield the rows of lines that are not blank; DataError: no row by `_value`, or too long."""
    size = 0
    for number, line in enumerate(lines, 1):
        size += len(line)
        where = f"{path}:{number}"
        if len(line) > LINE_LIMIT:
            raise DataError(
                f"a line longer than {LINE_LIMIT >> 20} MiB ({where}): expected one sample a line. "
                "Split it, or check that this is JSONL"
            )
        _check_size(size, path)
        if line.strip():
            yield _row(_value(line, where, text), where, text)


def _value(line: bytes, where: str, text: str | None) -> Any:
    """Return a line's JSON object; `where` names its place in messages.

    With a key `text`, a line that does not begin with `{` is a str: that of a JSON string, or the
    line itself; a JSON list is a list, which `_row` refuses. DataError: neither, or not UTF-8.
    """
    start = line.lstrip()[:1]
    try:
        if text is None or start == b"{":
            return json.decode(line, type=dict[str, Any])
        content = line.rstrip(b"\r\n").decode()
    except (ValueError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else "; the file may have been cut off here"
        raise DataError(
            f"{first_line(error)} ({where}{torn}): expected one JSON object a line, in UTF-8. "
            "Correct the line"
        ) from error
    with suppress(ValueError, RecursionError):  # a text may begin so, too
        return json.decode(line) if start in (b"[", b'"') else content
    return content


def _row(value: Any, where: str, text: str | None) -> FileRow:
    if text is not None and isinstance(value, str):
        value = {text: value}
    if not isinstance(value, dict):
        raise DataError(f"a JSON {type(value).__name__} ({where}): expected an object. Correct it")
    return FileRow(where, value)


def _parquet(path: Path) -> Iterator[FileRow]:
    """Yield the rows of a parquet file, by batches; DataError: it is too large uncompressed."""
    import pyarrow.parquet  # type: ignore[import-untyped]  # it comes with `datasets`

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        _check_size(sum(file.metadata.row_group(group).total_byte_size for group in groups), path)
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1000))
        yield from _number_rows(chain.from_iterable(batches), path)


def dataset_rows(name: str) -> Iterator[FileRow]:
    """Yield the rows of a data set that `datasets` loads: those of split `test`, or the only one.

    `name` is a folder, of `save_to_disk` or of data files, or an id of the hub. DataError: it is no
    such, too large, or has other splits. UnavailableError: an id neither cached nor within reach.
    """
    import datasets

    try:
        splits = _splits(datasets, name)
    except ConnectionError as error:
        raise UnavailableError(
            f"{name} is not cached and the hub cannot be reached: expected a data set. "
            "Name a file or folder, or run once with network"
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"no data set ({name}): expected a file, or a folder of data files or of "
            "`Dataset.save_to_disk`. Check the name"
        ) from error
    rows = next(iter(splits.values())) if len(splits) == 1 else splits.get("test")
    if rows is None:
        raise DataError(
            f"splits {', '.join(splits)} ({name}): expected one, or 'test'. Save one of them alone"
        )
    _check_size(rows.data.nbytes, Path(name))
    yield from _number_rows(rows, Path(name))


def _splits(datasets: Any, name: str) -> dict[str, Any]:
    """Return the splits by name; "" is that of a single one that was saved."""
    try:
        saved = datasets.load_from_disk(name)
    except FileNotFoundError:
        saved = datasets.load_dataset(name)
    return saved if isinstance(saved, dict) else {"": saved}


def _number_rows(values: Iterable[dict[str, Any]], path: Path) -> Iterator[FileRow]:
    return (FileRow(f"{path}, row {number}", row) for number, row in enumerate(values, 1))


def _check_size(size: int, path: Path) -> None:
    if size > SIZE_LIMIT:
        raise DataError(
            f"more than {SIZE_LIMIT >> 30} GiB of data ({path}): expected a smaller file, as its "
            "rows are kept in memory. Split it"
        )


def digest_of(texts: Iterable[str]) -> str:
    """Return the SHA-256 of the texts, each preceded by its length."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
