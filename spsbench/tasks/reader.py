"""Rows of a data file: JSONL, text, either gzipped, parquet, or a folder that `datasets` has saved.

The first bytes of a file decide its format, not its name. Errors name the place in the file;
nothing is skipped or repaired. `fingerprint` names a set of prompts.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from spsbench.errors import (
    DataError,
    MissingError,
    PermissionDeniedError,
    UnavailableError,
    first_line,
)
from spsbench.foreign import FieldError, parse_json
from spsbench.hardware.files import open_file
from spsbench.settings.task import Fits, Task


def parse(line: bytes, where: str) -> dict[str, Any]:
    """Return the object on a line of JSONL, read strictly.

    Args:
        line: bytes of the line, with the newline if there is one.
        where: file and line, for messages.

    Raises:
        DataError: no JSON in UTF-8, nested too deeply, or no object.
    """
    try:
        value = parse_json(line, strict=False)  # half a surrogate pair is a model's, not the file's
        if not isinstance(value, dict):
            raise FieldError(f"JSON, but a {type(value).__name__}")
    except FieldError as error:
        torn = "" if line.endswith(b"\n") else "; the file may have been cut off here"
        raise DataError(
            f"{error} ({where}{torn}): expected one JSON object a line. Correct the line"
        ) from error
    return value


def decoded(line: bytes, where: str) -> str:
    """Return the text of a line.

    Raises:
        DataError: not UTF-8; names the column.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"bytes that are not UTF-8 ({where}:{error.start + 1}): expected UTF-8. "
            "Convert the file, for instance with iconv"
        ) from error


LINE_LIMIT = 16 << 20  # bytes
SIZE_LIMIT = 1 << 30  # bytes when unpacked: rows are kept in memory, and a gzip may be a bomb
_BOM = b"\xef\xbb\xbf"


class Identified(Protocol):
    """An item with an id."""

    @property
    def id(self) -> str:
        """Return the id."""


Item = TypeVar("Item", bound=Identified)


class Row(NamedTuple):
    """An object of a file, with its place."""

    where: str  # file and line, for messages
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """Return the text under `key`.

        Raises:
            DataError: the value is missing, no text, or has a lone surrogate.
        """
        value = self.values.get(key)
        if not isinstance(value, str):
            problem = f"{key!r} is {type(value).__name__}" if key in self.values else f"no {key!r}"
            keys = ", ".join(map(repr, self.values))[:200]
            raise DataError(
                f"{problem} ({self.where}): expected a text. The keys there are {keys or 'none'}"
            )
        return well_formed(value, f"{self.where}, {key!r}")

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
        MissingError: there is no such file.
        PermissionDeniedError: the file is not readable.
        DataError: the file is damaged, too large, or of another format; names the line.
    """
    try:
        if path.is_dir():
            yield from _saved(path)
            return
        with open_file(path) as file:
            start = file.peek(4)
            if start.startswith(b"PAR1"):
                yield from _parquet(path)
            elif start.startswith(b"\x1f\x8b"):
                with gzip.open(file) as unpacked:
                    yield from _lines(unpacked, path, text)
            else:
                yield from _lines(file, path, text)
    except FileNotFoundError as error:
        raise MissingError(
            f"no data file ({path}): expected JSONL, JSONL.gz or parquet. Check the path"
        ) from error
    except PermissionError as error:
        raise PermissionDeniedError(
            f"the data file may not be read ({path}): expected read permission. "
            "Ask its owner, or copy it"
        ) from error
    except (EOFError, zlib.error, OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"damaged or unreadable data ({path}, {first_line(error)}): expected a whole file. "
            "Fetch it again"
        ) from error


def cached(repository: str, file: str, revision: str | None = None) -> Path | None:
    """Return the path of a data set's file in the hub's cache, else None."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, repo_type="dataset", revision=revision)
    return Path(path) if isinstance(path, str) else None


def out_of_reach() -> str | None:
    """Return why nothing can be downloaded now, or None, within three seconds."""
    from spsbench.models.hub import reachable, why_offline

    why = why_offline("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return why or (None if reachable() else "the hub cannot be reached")


def hub_file(
    repository: str, file: str, revision: str | None = None, sha256: str | None = None
) -> Path:
    """Return the path of a data set's file, from the hub's cache or else from the hub.

    Raises:
        UnavailableError: not cached, and offline, unreachable, or the download failed.
        DataError: the file's checksum is not `sha256`.
        PermissionDeniedError: the cache is not writable.
    """
    from huggingface_hub import hf_hub_download

    path, action = cached(repository, file, revision), "Name a file with `data` PATH"
    if path is None and (why := out_of_reach()) is not None:
        raise UnavailableError(
            f"{repository} is not cached and {why}: expected {file}. {action}, or run once with "
            "network"
        )
    try:
        if path is None:
            download = hf_hub_download(repository, file, repo_type="dataset", revision=revision)
            path = Path(download)
    except PermissionError as error:
        raise PermissionDeniedError(
            f"the hub's cache cannot be written ({error.filename}): expected a folder of yours. "
            "Set HF_HOME to one"
        ) from error
    except Exception as error:  # the client raises kinds of several packages
        raise UnavailableError(
            f"{repository} cannot be had ({first_line(error)}): expected {file}. {action}"
        ) from error
    if sha256 is not None:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != sha256:
            raise DataError(
                f"another checksum of {file} ({path}, sha256 {digest}): expected {sha256}. Delete "
                "the file to fetch it again; if that does not help, it was changed at the hub"
            )
    return path


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


def well_formed(text: str, where: str) -> str:
    """Return `text` if it can be encoded.

    Raises:
        DataError: the text has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"half a surrogate pair ({where}, character {error.start + 1}): expected Unicode text. "
            "Correct the escape"
        ) from error
    return text


def _lines(file: IO[bytes] | io.BufferedIOBase, path: Path, text: str | None) -> Iterator[Row]:
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
        line = line.removeprefix(_BOM) if number == 1 else line
        if text is not None and line.strip() and not line.lstrip().startswith(b"{"):
            yield Row(where, {text: decoded(line.rstrip(b"\r\n"), where)})
        elif line.strip():
            yield Row(where, parse(line, where))


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


def check_fits(task: Task, problem: str, prompt: str, fits: Fits) -> None:
    """Refuse a problem that does not fit the context, for tasks whose problems are never cut.

    Raises:
        DataError: the prompt of `problem`, an id, does not fit with the tokens to come.
    """
    if not fits(prompt):
        raise DataError(
            f"problem {problem!r} ({task.title}): expected it to fit the context with "
            f"{task.max_new_tokens} tokens to come. Ask for fewer, or choose models with "
            "a longer one"
        )
