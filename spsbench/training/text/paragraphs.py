"""Plain text, cut at empty lines."""

from collections.abc import Iterator
from pathlib import Path

from spsbench.errors import DataError, MissingError
from spsbench.hardware.files import read_file

LIMIT = 1 << 30  # bytes


def paragraphs(path: Path, flag: str) -> Iterator[str]:
    """The paragraphs of a file; `flag` named it.

    Raises:
        MissingError, DataError: no such file, or no text.
    """
    try:
        text = read_file(path, LIMIT).decode()
    except FileNotFoundError as error:
        raise MissingError(f"no such file ({path}): expected text. Check {flag}") from error
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): expected UTF-8 text") from error
    parts = (part.strip() for part in text.replace("\r\n", "\n").split("\n\n"))
    yield from (part for part in parts if part)
