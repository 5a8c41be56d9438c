"""Input from outside (servers, logs, files), read within bounds: values, or an error of one line.

Read `open_untrusted`, `read_untrusted`, `read_text`, `read_json` and `read_toml` (files),
`parse_json` (bytes), and `cut` (text from outside, made printable).
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NoReturn, TypeGuard

from spsbench.errors import DataError, MissingError, PermissionDeniedError, UsageError, first_line
from spsbench.hardware.files import in_words, open_file
from spsbench.messages import visible

MAX_JSON = 32 * 2**20  # bytes of one JSON value
MAX_VALUES = 4 * 2**20  # values in one JSON value: each takes up to 72 bytes
MAX_DEPTH = 200  # levels of one JSON value
MAX_TOML = 2**18  # bytes of a TOML file: a part of a key takes up to 1 KB
MAX_KEY_PARTS = 16  # in a dotted key: TOML's parser takes their square
MAX_UNPACKED, MAX_RATIO = 64 * 2**20, 100
"""A packed file may give so many bytes, or else so many times those that it has."""
MAX_PATH = 300  # characters of a path in a line
SHOWN = 60  # characters of a value or a name in a line
BOM, UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
POINTER = b"version https://git-lfs"
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # the last one may have no end
NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
NO_KEY = re.compile(  # texts and comments of TOML; the last one may have no end
    r"""\"{3}(?:[^"\\]++|\\.|"(?!""))*+(?:"{3})?|'{3}(?:[^']++|'(?!''))*+(?:'{3})?"""
    r"""|"(?:[^"\\\n]++|\\.)*+"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


class FieldError(DataError, ValueError):
    """A value of another type than the schema's, or beyond the bounds."""


class NotJSONError(FieldError):
    """Bytes that are no JSON, or only the first part of it."""


class RangeError(FieldError):
    """A number that cannot be true."""


@contextmanager
def open_untrusted(path: str | Path, what: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file or a pipe, behind its byte order mark; gzip, bzip2, xz and zstd are unpacked.

    Yields the file to read, and the one whose position says how far it is read. `~` in `path` is
    expanded; messages say that `what` is expected. Raises MissingError for no such file,
    PermissionDeniedError for one that is not readable, and DataError for one that is damaged or
    fails while it is read, unpacks to too much, is a folder, a device, UTF-16 or a pointer of Git
    LFS, and for a pipe that is silent for too long.
    """
    with reading(path, what), open_file(_existing(path)) as file:
        start, place = file.peek(len(POINTER)), cut(str(path), MAX_PATH)
        if start.startswith(UTF_16):
            raise DataError(f"UTF-16 ({place}): expected {what}, in UTF-8. Convert it with iconv")
        if start.startswith(POINTER):
            raise DataError(f"a Git LFS pointer ({place}): expected {what}. Run git lfs pull")
        opener = next((opener for mark, opener in PACKED.items() if start.startswith(mark)), None)
        with nullcontext(file) if opener is None else _unpack(file, opener) as unpacked:
            if unpacked.peek(3)[:3] == BOM:
                unpacked.read(3)
            yield unpacked, file


class _Unpacked(io.RawIOBase):
    """The bytes that `file` unpacks from `packed`, the file that it reads; bounded."""

    def __init__(self, file: IO[bytes], packed: IO[bytes]) -> None:
        self._file, self._packed, self._size = file, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; return the number of bytes; OSError: it unpacks to too much."""
        data = self._file.read(len(buffer))
        self._size += len(data)
        is_file = self._packed.seekable()  # a pipe has no size, and may be endless without packing
        if is_file and self._size > max(MAX_UNPACKED, MAX_RATIO * self._packed.tell()):
            raise OSError(
                f"it unpacks to more than {in_words(MAX_UNPACKED)} and {MAX_RATIO} times its size"
            )
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _unpack(file: IO[bytes], opener: Callable[[IO[bytes]], Any]) -> Iterator[io.BufferedReader]:
    with opener(file) as stream:
        yield io.BufferedReader(_Unpacked(stream, file), 1 << 16)


def _open_zstd(file: IO[bytes]) -> Any:
    import pyarrow  # type: ignore[import-untyped]  # the standard library has it from 3.14 on

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


PACKED: Mapping[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}
"""First bytes of packed files -> what opens them."""


def path_above(folder: Path, path: str) -> Path | None:
    """Return `path` in the nearest folder above a run's that has it; None: none has.

    A run names files as its user did, relative to the folder in which it was started.
    """
    places = (parent / path for parent in folder.absolute().parents)
    return next((place for place in places if os.path.exists(place)), None)


def _existing(path: str | Path) -> Path:
    expanded = Path(os.path.expanduser(path))
    if not expanded.exists():  # so that a name that no file can have is an absent file
        raise FileNotFoundError
    return expanded


@contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Turn errors of reading `path` in this block into a line that says that `what` is expected.

    Raises MissingError where it is absent, PermissionDeniedError where it may not be read, and
    DataError for other errors of the system and of unpacking.
    """
    place = cut(str(path), MAX_PATH)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(f"no file {place}: expected {what}. Check the path") from error
    except PermissionError as error:
        raise PermissionDeniedError(
            f"{place} may not be read: expected read permission. Ask its owner"
        ) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise DataError(
            f"unreadable ({place}: {reason}): expected {what}. Check the file"
        ) from error


def read_untrusted(path: str | Path, what: str, limit: int = MAX_JSON) -> bytes:
    """Return the content of a file or a pipe, unpacked and without a byte order mark.

    Raises SpsError as `open_untrusted`, and DataError for more than `limit` bytes, unpacked.
    """
    with open_untrusted(path, what) as (file, _):
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DataError(
            f"more than {in_words(limit)} ({cut(str(path), MAX_PATH)}): expected {what}. "
            "Give a smaller file"
        )
    return content


def read_text(path: str | Path, what: str, limit: int = MAX_JSON) -> str:
    """Return the text of a file in UTF-8, which may be packed.

    Raises SpsError as `read_untrusted`, and DataError for no UTF-8.
    """
    try:
        return read_untrusted(path, what, limit).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"no UTF-8 at byte {error.start} ({cut(str(path), MAX_PATH)}): expected {what}. "
            "Convert it"
        ) from error


def read_json(path: str | Path, what: str, *, limit: int = MAX_JSON, **bounds: Any) -> Any:
    """Return the JSON value of a file; `bounds` are `strict` and `values` of `parse_json`.

    Raises SpsError as `read_untrusted`, and DataError, which names the path, where `parse_json`
    fails.
    """
    content = read_untrusted(path, what, limit)
    try:
        return parse_json(content, limit=limit, **bounds)
    except FieldError as error:
        raise DataError(
            f"{error} ({cut(str(path), MAX_PATH)}): expected {what}. Check the file"
        ) from error


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises SpsError as `read_untrusted`, for more than `MAX_TOML` bytes too, and UsageError for no
    TOML in UTF-8, tables nested too deeply, and dotted keys of too many parts.
    """
    content = read_untrusted(path, what, MAX_TOML)
    try:
        text = content.decode()
        if LONG_KEY.search(NO_KEY.sub("_", text)):
            raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason, place = cut(first_line(error), 200), cut(str(path), MAX_PATH)
        raise UsageError(f"no TOML ({place}: {reason}): expected {what}. Correct it") from error


def parse_json(
    data: bytes, *, strict: bool = True, limit: int = MAX_JSON, values: int = MAX_VALUES
) -> Any:
    """Return the JSON value in `data`; its bytes, values and depth are counted before it is built.

    `data` is UTF-8, which may begin with a byte order mark, of at most `limit` bytes and as many
    `values`, those in lists and objects included. `strict` refuses NaN, Infinity and lone
    surrogates, which writers of JSON often let through. Raises NotJSONError for no JSON or no
    UTF-8, and FieldError beyond the bounds or `MAX_DEPTH`, for a number of too many digits, and for
    what `strict` refuses.
    """
    if len(data) > limit:
        raise FieldError(f"more than {in_words(limit)} in one JSON value")
    bare = STRING.sub(b"", data)
    if sum(map(bare.count, (b",", b"[", b"{"))) > values:
        raise FieldError(f"more than {values:,} values in JSON")
    brackets = bare.translate(None, NO_BRACKET)
    if len(brackets) > MAX_DEPTH:
        steps = (1 if bracket in b"[{" else -1 for bracket in brackets)
        if max(accumulate(steps)) > MAX_DEPTH:
            raise FieldError("JSON nested too deeply")
    try:
        value = json.loads(
            data.decode().removeprefix("\ufeff"), parse_constant=_refuse if strict else None
        )
        if strict and b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except FieldError:
        raise
    except UnicodeEncodeError as error:
        raise FieldError("half a surrogate pair in JSON") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise NotJSONError(f"no JSON ({first_line(error)})") from error
    except ValueError as error:  # int() refused
        raise FieldError("a number of too many digits in JSON") from error
    return value


def _refuse(constant: str) -> NoReturn:
    raise FieldError(f"the number {constant} in JSON")


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number that a float can hold: no bool, NaN, 10^400."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def cut(value: object, most: int = SHOWN) -> str:
    """Return a value in one printable line of `most` characters, and `...` if there is more.

    White space becomes single spaces. Other values than texts: by `repr`, or by type if that fails.
    """
    try:
        words = value[: 4 * most] if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        words = f"a {type(value).__name__}"
    text = visible(" ".join(words.split()))
    return text if len(text) <= most else f"{text[:most]}..."
