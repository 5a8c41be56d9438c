"""The body of an answer: JSON, or a stream of events, with bounds on what is parsed."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from spsbench.foreign import MAX_JSON, FieldError, NotJSONError, mapping, parse_json

LARGEST = 64 * 2**20  # bytes of one answer
MAX_PIECES = 2**16  # pieces in which an answer comes, and as many as `PIECES` for each token
PIECES = 16
SPARE = 16  # events beside those of the tokens that renew the clock of a stream
MAX_ERROR_PAGE = 2**16  # bytes of an error page that are read
MARGIN = 2**12  # more than the characters of a key, in any form
MAX_REASON = 200  # characters of a server's words in a line
DONE = b"[DONE]"
Pieces = list[tuple[float, bytes]]
"""Pieces of an answer with their times of arrival; the last, empty, has the time of the end."""


class BrokenAnswerError(Exception):
    """An answer that is truncated, too large or not JSON."""


class EndOfStream:
    """Finds the line `data: [DONE]` in a stream that comes in pieces."""

    LINE = re.compile(rb"[\r\n]data:[ \t]*\[DONE\]")

    def __init__(self) -> None:
        self._tail = b"\n"

    def is_in(self, piece: bytes) -> bool:
        """Return whether the stream ends in `piece`."""
        window = self._tail + piece
        self._tail = window[-32:]
        return self.LINE.search(window) is not None


class Progress:
    """Finds new tokens in the lines of a stream: comments, blanks and empty events are none.

    Args:
        tokens: were asked for; no more events than that, and some to spare, are progress.
    """

    TOKEN = re.compile(
        rb'^data:.*"(?:text|content|reasoning_content|reasoning|refusal|tokens|token_ids|'
        rb'output_ids|tool_calls|function_call)"\s*:\s*(?:"[^"]|[\[{]\s*[^\s\]}])',
        re.MULTILINE,
    )

    def __init__(self, tokens: int) -> None:
        self._left = tokens + SPARE
        self._line: list[bytes] = []  # pieces of the line that has not ended

    def is_in(self, piece: bytes) -> bool:
        """Return whether an event with a token ends in `piece`."""
        ended, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._line.append(piece)
            return False
        lines = b"".join([*self._line, ended])
        self._line = [rest]
        if self._left <= 0 or not self.TOKEN.search(lines):
            return False
        self._left -= 1
        return True


def parsed(
    pieces: Pieces, *, streamed: bool, clean: Callable[[Any], Any] = lambda value: value
) -> Iterator[tuple[float, Any]]:
    """Yield the JSON of an answer, or of each of its events, with times of arrival.

    Args:
        pieces: of an answer; emptied, so that an answer is in memory once.
        clean: applied to each value.

    Raises:
        BrokenAnswerError: half an event, no end, or no JSON.
    """
    if not streamed:
        at, body = pieces[-1][0], b"".join(piece for _, piece in pieces)
        pieces.clear()
        yield at, loaded(body, clean)
        return
    done = False
    for at, line, whole in lines_of(pieces):
        if not line.startswith(b"data:"):
            if not whole and line.strip():
                raise BrokenAnswerError("the stream ends within an event")
            continue
        data = line[5:].strip()
        if data == DONE:
            done = True
            continue
        try:
            event = loaded(data, clean)
        except BrokenAnswerError as error:
            if not whole:
                raise BrokenAnswerError("the stream ends within an event") from error
            raise
        yield at, event
        done = done or has_ended(event)
    if not done:
        raise BrokenAnswerError("the stream ends without [DONE] or a finish_reason")


def lines_of(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes, bool]]:
    """Yield each line with the time of its last piece, and whether it has an end.

    Raises:
        BrokenAnswerError: a line of more than `MAX_JSON` bytes.
    """
    parts: list[bytes] = []  # of the line that has not ended
    size, at = 0, 0.0
    for at, piece in pieces:
        first, *others = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        for other in others:
            yield at, b"".join(parts), True
            parts, size = [other], len(other)
        if size > MAX_JSON:
            raise BrokenAnswerError(f"more than {MAX_JSON >> 20} MiB in one line")
    if size:
        yield at, b"".join(parts), False


def loaded(data: bytes, clean: Callable[[Any], Any] = lambda value: value) -> Any:
    """Parse JSON that is an object without an error in it.

    Raises:
        BrokenAnswerError: no JSON, or an error in a stream.
        FieldError: JSON, but no object; or beyond the bounds.
    """
    try:
        value = clean(parse_json(data, strict=False))
    except NotJSONError as error:
        raise BrokenAnswerError(str(error)) from error
    if not isinstance(value, dict):
        raise FieldError("JSON, but no object")
    if value.get("error") and not value.get("choices"):
        raise BrokenAnswerError(f"an error in the stream ({reason_in(value)})")
    return value


def reason_of(body: bytes, hide: Callable[[str], str] = str) -> str:
    """Return the message of an error page in one line, with `hide` applied before it is cut."""
    page = body[:MAX_ERROR_PAGE].decode(errors="replace")
    if len(body) > MAX_ERROR_PAGE:  # the end of what is read may hold a half of a secret
        return reason_in(hide(page)[:-MARGIN])
    value: Any = page
    with suppress(FieldError):
        value = parse_json(page.encode(), strict=False)
    return reason_in(value, hide)


def reason_in(value: Any, hide: Callable[[str], str] = str) -> str:
    """Return the message in an error page's JSON in one line."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    try:
        words = hide(str(value))
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        return "no reason given"
    return " ".join(words.split())[:MAX_REASON] or "no reason given"


def has_ended(event: Any) -> bool:
    """Return whether an event gives the reason of the end: the last of `transformers serve`."""
    choices = event.get("choices")
    entries = choices if isinstance(choices, list) else ()
    return any(mapping(entry, "choices").get("finish_reason") for entry in entries)
