"""The bytes of an answer as they arrive, within bounds, and the JSON in them.

A stream is kept as events with arrival times and parsed after its end, so that parsing of one
answer does not delay the clock of another.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from spsbench.foreign import FieldError, NotJSONError, mapping, parse_json

LARGEST = 64 * 2**20  # bytes of one answer
MAX_EVENTS = 2**16  # events of a stream, and as many as `EVENTS` for each token
EVENTS = 16
SPARE = 16  # events beside those of the tokens that renew the clock of a stream
MAX_ERROR_PAGE = 2**16  # bytes of an error page that are read
MARGIN = 2**12  # more than the characters of a key, in any form
MAX_REASON = 200  # characters of a server's words in a line
DONE = b"[DONE]"
LAST_LINE = re.compile(rb"\r?data:[ \t]*\[DONE\]\s*")
TOKEN = re.compile(
    rb'"(?:text|content|reasoning_content|reasoning|refusal|tokens|token_ids|'
    rb'output_ids|tool_calls|function_call)"\s*:\s*(?:"[^"]|[\[{]\s*[^\s\]}])'
)
Hide = Callable[[Any], Any]
"""Replaces an API key in a text, or in all texts of a JSON value."""


class BrokenAnswerError(Exception):
    """An answer that is truncated, too large or not JSON."""


class Body:
    """An answer, whole or as a stream of events.

    Args:
        streamed: events, one a line, are expected.
        tokens: were asked for; no more events than that, and some to spare, are progress.
    """

    def __init__(self, *, streamed: bool, tokens: int = 0) -> None:
        self.streamed, self.status = streamed, 0
        self.headers: Any = {}
        self.content = bytearray()  # of a stream, the line that has not ended
        self.events: list[tuple[float, bytes]] = []
        self.tokens = 0  # events that hold a token
        self.end = 0.0  # time of the last event of a stream, 0 before; of the last byte
        self.watch: Callable[[], None] = lambda: None  # called after each event with a token
        self._asked, self._size, self._has_begun = tokens, 0, False

    def take(self, at: float, piece: bytes) -> bool:
        """Add a piece and return whether it is progress: the first byte, or an event with a token.

        Raises:
            BrokenAnswerError: too many bytes or events.
        """
        self._size += len(piece)
        most = MAX_EVENTS + EVENTS * self._asked
        if self._size > LARGEST or len(self.events) > most:
            raise BrokenAnswerError(
                f"more than {LARGEST >> 20} MiB or {most:,} events in one answer"
            )
        self.content += piece
        if not self.streamed:
            is_first = not self._has_begun and not piece.isspace()
            self._has_begun |= is_first
            return is_first
        tokens = self.tokens
        if b"\n" in piece:
            *lines, self.content = self.content.split(b"\n")
            for line in lines:
                self._add(at, bytes(line))
        if len(self.content) < 40 and LAST_LINE.fullmatch(self.content):
            self.end = at
        return tokens < self.tokens <= self._asked + SPARE

    def _add(self, at: float, line: bytes) -> None:
        if line.startswith(b"data:"):  # comments and names of events say nothing
            self.events.append((at, line[5:].strip()))
            if TOKEN.search(line):
                self.tokens += 1
                self.watch()
            elif LAST_LINE.fullmatch(line):
                self.end = at

    def close(self, at: float) -> None:
        """End the answer; a line without an end is one all the same."""
        if self.streamed:
            self._add(at, bytes(self.content))
        self.end = self.end or at

    def parsed(self, hide: Hide) -> Iterator[tuple[float, Any]]:
        """Yield the JSON of an answer, or of each of its events, with times of arrival.

        Args:
            hide: applied to each value.

        Raises:
            BrokenAnswerError: half an event, no end, or no JSON.
            FieldError: JSON, but no object; or beyond the bounds.
        """
        if not self.streamed:
            yield self.end, loaded(bytes(self.content), hide)
            return
        is_done = False
        for at, data in self.events:
            if data == DONE:
                is_done = True
                continue
            event = loaded(data, hide)
            yield at, event
            # the last event of `transformers serve` gives the reason of the end
            choices = event.get("choices")
            entries = choices if isinstance(choices, list) else ()
            is_done |= any(mapping(entry, "choices").get("finish_reason") for entry in entries)
        if not is_done:
            raise BrokenAnswerError("the stream ends without [DONE] or a finish_reason")


def loaded(data: bytes, hide: Hide) -> dict[str, Any]:
    """Parse JSON that is an object without an error in it.

    Raises:
        BrokenAnswerError: no JSON, or an error in a stream.
        FieldError: JSON, but no object; or beyond the bounds.
    """
    try:
        value = hide(parse_json(data, strict=False))
    except NotJSONError as error:
        raise BrokenAnswerError(str(error)) from error
    if not isinstance(value, dict):
        raise FieldError("JSON, but no object")
    if value.get("error") and not value.get("choices"):
        raise BrokenAnswerError(f"an error in the stream ({reason_in(value)})")
    return value


def reason_of(body: bytes, hide: Hide) -> str:
    """Return the message of an error page in one line, with `hide` applied before it is cut."""
    page = body[:MAX_ERROR_PAGE].decode(errors="replace")
    if len(body) > MAX_ERROR_PAGE:  # the end of what is read may hold a half of a secret
        return reason_in(hide(page)[:-MARGIN])
    value: Any = page
    with suppress(FieldError):
        value = parse_json(page.encode(), strict=False)
    return reason_in(hide(value))


def reason_in(value: Any) -> str:
    """Return the message in an error page's JSON in one line."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    try:
        words = str(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        return "no reason given"
    return " ".join(words.split())[:MAX_REASON] or "no reason given"
