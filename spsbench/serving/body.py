"""The bytes of an answer as they arrive, within bounds."""

import re
from collections.abc import Callable
from typing import Any

from spsbench.serving.answers import AttemptError, Reader

LARGEST = 64 * 2**20  # bytes of one answer
MAX_EVENTS = 2**16  # events of a stream, and as many as `EVENTS` for each token
EVENTS = 16
SPARE = 16  # events beside those of the tokens that renew the clock of a stream
LAST_LINE = re.compile(rb"\r?data:[ \t]*\[DONE\]\s*")


class Body:
    """An answer, whole or as a stream of events, each read once.

    Args:
        reader: of the schema; None: only the bytes are kept.
        streamed: events, one a line, are expected.
        tokens: were asked for; no more events than that, and some to spare, are progress.
    """

    def __init__(
        self, reader: Reader | None = None, *, streamed: bool = False, tokens: int = 0
    ) -> None:
        self.streamed, self.status = streamed, 0
        self.headers: Any = {}
        self.content = bytearray()  # of a stream, the line that has not ended
        self.tokens = 0  # events that hold a token
        self.end = 0.0  # time of the last event of a stream, 0 before; of the last byte
        self.watch: Callable[[], None] = lambda: None  # called after each event with a token
        self._reader, self._asked, self._size, self._events = reader, tokens, 0, 0

    def take(self, at: float, piece: bytes) -> bool:
        """Add a piece and return whether it is progress: the first byte, or an event with a token.

        Raises:
            AttemptError: too many bytes or events.
            AttemptError, FieldError: as `Reader.add`.
        """
        self._size += len(piece)
        most = MAX_EVENTS + EVENTS * self._asked
        if self._size > LARGEST or self._events > most:
            raise AttemptError(f"more than {LARGEST >> 20} MiB or {most:,} events in one answer")
        self.content += piece
        before = self.tokens
        if not self.streamed:
            self.tokens = int(self.tokens or not piece.isspace())
        elif b"\n" in piece:
            *lines, self.content = self.content.split(b"\n")
            for line in lines:
                self._add(at, bytes(line))
        if self.streamed and len(self.content) < 40 and LAST_LINE.fullmatch(self.content):
            self.end = at
        return before < self.tokens <= self._asked + SPARE

    def _add(self, at: float, line: bytes) -> None:
        if LAST_LINE.fullmatch(line):
            self.end = at
        elif line.startswith(b"data:") and self._reader:  # comments and names of events say nothing
            self._events += 1
            if self._reader.add(at, line[5:]):
                self.tokens += 1
                self.watch()

    def close(self, at: float) -> None:
        """End the answer; a line without an end is one all the same.

        Raises:
            AttemptError: a stream without an end.
            AttemptError, FieldError: as `Reader.add`.
        """
        if self.streamed:
            self._add(at, bytes(self.content))
            # the last event of `transformers serve` gives the reason of the end
            if not self.end and not (self._reader and self._reader.answer.finish):
                raise AttemptError("the stream ends without [DONE] or a finish_reason")
        elif self._reader and self.status == 200:
            self._reader.add(at, bytes(self.content))
        self.end = self.end or at
