"""Text on a terminal: results on stdout by `write`, lines on stderr by `say` and `note`.

Control characters are escaped. Rooms name a field in backticks: `with_flags` shows its flag.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, TextIO

from spsbench.errors import WriteError, replace_fields, without_marks
from spsbench.messages import visible
from spsbench.settings.options import flag_of

DIM, BOLD, YELLOW, RESET = "\x1b[2m", "\x1b[1m", "\x1b[33m", "\x1b[0m"
ROOM = 12  # columns that a wrapped text needs
NOT_ASCII_PRINTABLE = re.compile(r"[^\n\t\x20-\x7e]")


def safe_text(text: str) -> str:
    r"""Show the unprintable characters of `text` as escapes (`\x1b`); \n and \t stay.

    Rich passes ESC, C1 and bidi controls through, to a terminal and to a pipe alike.
    """
    return NOT_ASCII_PRINTABLE.sub(lambda match: visible(match[0]), text)


def one_line(text: str) -> str:
    """Return `text`, safe and without line breaks."""
    return " ".join(safe_text(text).splitlines())


def show_what_can_be_shown() -> None:
    """Let stdout and stderr escape characters that their encoding lacks (LANG=C, cp1252).

    A stream that is closed at the start discards text.
    """
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8", closefd=False))
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write(content: str | bytes) -> None:
    """Write text, or bytes as they are, to stdout, and flush.

    Raises WriteError for a full disk or the like, and BrokenPipeError where the reader has gone.
    """
    try:
        if isinstance(content, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
        else:
            sys.stdout.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteError(f"stdout cannot be written ({error.strerror})") from error


def to_json_line(values: Any) -> str:
    """Return values as indented JSON that ends with a line break; ValueError: NaN or Infinity."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a string a row (one or more, equally long), aligned; on a terminal last cells wrap."""
    *widths, _ = (max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    room = get_terminal_size().columns - sum(widths) if is_terminal(sys.stdout) else 0
    for *cells, last in rows:
        first = "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield first + ("\n" + " " * sum(widths)).join(wrap(last, room) if room > ROOM else [last])


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is open and a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def say(line: str, style: str = DIM) -> None:
    """Write a line to stderr, escaped, with flags for fields; warnings are yellow on a terminal."""
    text = one_line(with_flags(line))
    if wants_colour() and is_terminal(sys.stderr):
        text = f"{YELLOW if text.startswith('warning:') else style}{text}{RESET}"
    print(text, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Write a line to stderr about something unexpected."""
    say(f"note: {line}")


def wants_colour() -> bool:
    """Return whether the environment allows colour: no (or "") NO_COLOR, and TERM is not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def with_flags(text: str) -> str:
    """Return a message with flags in place of the fields that it names in backticks."""
    return without_marks(replace_fields(text, flag_of))
