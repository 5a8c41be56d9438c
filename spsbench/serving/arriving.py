"""Tokens of a streamed answer, counted while it comes.

The answer itself is parsed after its end (`http`). What is counted here is shown to a user who
waits, and is what is left of an answer that breaks off.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spsbench.foreign import SCHEMA_ERRORS, parse_json

LONGEST_LINE = 1 << 20  # bytes of an event that is looked into
LONGEST_TEXT = 1 << 16  # characters that are remembered


@dataclass(eq=False)  # two streams with the same text are two
class Arriving:
    """The tokens and the text of a stream so far."""

    watch: Callable[[], None] = lambda: None
    tokens: int = 0
    text: str = ""
    _rest: list[bytes] = field(default_factory=list, repr=False)  # of the line that has not ended

    def begin(self) -> None:
        """Forget an attempt that failed."""
        self.tokens, self.text, self._rest = 0, "", []

    def take(self, piece: bytes) -> None:
        """Look into the events that end in a piece."""
        first, *others = piece.split(b"\n")
        self._rest.append(first)
        if not others:
            return
        *lines, rest = (b"".join(self._rest), *others)
        self._rest = [rest]
        for line in lines:
            if line.startswith(b"data:") and len(line) <= LONGEST_LINE:
                with suppress(*SCHEMA_ERRORS):  # the reader of the whole answer tells
                    self._see(parse_json(line[5:], strict=False))
        self.watch()

    def _see(self, event: Any) -> None:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            logprobs = choice.get("logprobs") or {}
            listed = (
                choice.get("token_ids") or logprobs.get("tokens") or logprobs.get("content") or ()
            )
            self.tokens += len(listed) or bool(text)
            if isinstance(text, str):
                self.text = (self.text + text)[:LONGEST_TEXT]
