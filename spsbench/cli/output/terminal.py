"""Text on a terminal: escapes of control characters, results on stdout, messages on stderr.

`write` prints results on stdout; `say` and `note` print lines on stderr, dim unless they matter.
"""

import os
import re
import sys
import unicodedata
from functools import cache
from io import TextIOWrapper
from typing import TextIO

from spsbench.cli.output.flags import with_flags
from spsbench.errors import Exit, SpsError

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls (ESC, CR, C1), formats (bidi, zero-width), surrogates, line and paragraph separators."""

DIM, BOLD, YELLOW, RESET = "\x1b[2m", "\x1b[1m", "\x1b[33m", "\x1b[0m"
NOT_ASCII_PRINTABLE = re.compile(r"[^\n\t\x20-\x7e]")


def safe_text(text: str) -> str:
    r"""Show the unprintable characters of `text` as escapes (`\x1b`); \n and \t stay.

    Rich passes ESC, C1 and bidi controls through, to a terminal and to a pipe alike.
    """
    return NOT_ASCII_PRINTABLE.sub(lambda match: visible(match[0]), text)


@cache
def visible(character: str) -> str:
    """Return the character itself, or its escape."""
    if unicodedata.category(character) in HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character


def one_line(text: str) -> str:
    """Return `text`, safe and without line breaks."""
    return " ".join(safe_text(text).splitlines())


def show_what_can_be_shown() -> None:
    """Let stdout and stderr escape characters that their encoding lacks (LANG=C, cp1252).

    A stream that is closed at the start discards text.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8", closefd=False))
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Write `text` to stdout and flush.

    Raises:
        CannotWriteError: the disk is full, or the like.
        BrokenPipeError: the reader has gone.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWriteError(f"stdout cannot be written ({error.strerror})") from error


def write_bytes(content: bytes) -> None:
    """Write `content` to stdout as it is, and flush.

    Raises:
        CannotWriteError: the disk is full, or the like.
        BrokenPipeError: the reader has gone.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWriteError(f"stdout cannot be written ({error.strerror})") from error


class CannotWriteError(SpsError):
    """An output that cannot be written, for instance to a full disk."""

    code = Exit.CANNOT_WRITE


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is open and a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def say(line: str, style: str = DIM) -> None:
    """Write a line to stderr, on a terminal in a style; warnings are yellow."""
    text = one_line(with_flags(line))
    if wants_colour() and is_terminal(sys.stderr):
        text = f"{YELLOW if text.startswith('warning:') else style}{text}{RESET}"
    print(text, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Write a line to stderr about something unexpected."""
    say(f"note: {line}")


def wants_colour() -> bool:
    """Return whether the environment allows colour (NO_COLOR, TERM=dumb)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
