"""Streaming of text: bytes, stop strings and the origin of each piece."""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from operator import index
from typing import Any, NamedTuple, Protocol

from spsbench.errors import DataError

LEAD = 6  # prompt tokens decoded along, so that a leading space comes out as in the whole text
PATIENCE = 8  # tokens after which bytes that never decode are shown as they are
LONGEST = 64  # tokens decoded at once
BYTES = 4  # bytes of a character in UTF-8, at most
UNDECODED = "\ufffd"


class Origin(StrEnum):
    """The source of a token: the draft, or the target."""

    ACCEPTED = "accepted"  # drafted and kept
    RECOVERED = "recovered"  # the target's, after a rejection
    BONUS = "bonus"  # the target's, after all drafted tokens were kept
    PLAIN = "plain"  # the target's, in a round without a draft
    UNTOLD = "untold"  # another engine does not tell


class Piece(NamedTuple):
    """Text of one origin; it may be empty while bytes are held back."""

    text: str
    origin: Origin


class Tokenizer(Protocol):
    """The part of a tokenizer's interface that streaming needs."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""


class Detokenizer:
    """An incremental decoder; a character whose bytes span tokens comes with the last of them.

    New tokens are decoded after a few earlier ones, from one that begins a character: decoders with
    byte fallback make every byte of a run that is no UTF-8 a U+FFFD, those of whole characters too.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._pending = 0  # tokens at the end of the window whose text is not out
        self._window, self._text, self._whole = list[int](), "", 0
        self._begin(prompt)

    def push(self, token: int) -> str:
        """Add a token; return the text that it completes, "" while bytes of a character lack."""
        self._window.append(token)
        self._pending += 1
        text = self._decode(self._window)
        unfinished = text.endswith(UNDECODED) and self._pending < PATIENCE
        return "" if unfinished else self._release(text)

    def flush(self) -> str:
        """Return the withheld text, with U+FFFD for bytes that form no character."""
        return self._release(self._decode(self._window)) if self._pending else ""

    def _release(self, text: str) -> str:
        """Return what `text`, that of the window, has beyond what was released; none is pending.

        The window shrinks to the tokens that were pending if they alone decode to the end of
        `text`, and to its last ones if it has more than `LONGEST`; else it stays.
        """
        # Bytes at the end of the prompt may have become a character: it is part of what is new.
        same = common_prefix(self._text, text)
        released = text[max(self._whole, same) :]
        newest = self._window[-self._pending :]
        alone = self._decode(newest)
        self._pending = 0
        if alone and alone[0] != UNDECODED and text.endswith(alone):
            self._window, self._text, self._whole = newest, alone, len(alone)
        elif len(self._window) > LONGEST:
            self._begin(self._window)
        else:
            self._text, self._whole = text, len(text)
        return released

    def _begin(self, ids: Sequence[int]) -> None:
        """Make the window `ids[-LEAD:]`, or up to `LONGEST // 2` more to begin at a character."""
        last = max(0, len(ids) - LEAD)
        for start in range(last, max(0, last - LONGEST // 2) - 1, -1):
            self._window = list(ids[start:])
            whole = self._whole_characters(self._window)
            if whole and whole[0] != UNDECODED:
                break
        self._text, self._whole = self._decode(self._window), len(whole)

    def _whole_characters(self, ids: list[int]) -> str:
        """Return the text of `ids` except an incomplete last character; "" if nothing is left."""
        for end in range(len(ids), max(0, len(ids) - BYTES), -1):
            if not (text := self._decode(ids[:end])).endswith(UNDECODED):
                return text
        return ""

    def _decode(self, ids: list[int]) -> str:
        """Decode ids; of an engine that gives none there is no tokenizer either."""
        return self._tokenizer.decode(ids, skip_special_tokens=True) if ids else ""


class Transcript:
    """The pieces of a generation that are safe to show, cut at the first stop string.

    A suffix that may become a stop string is withheld until that is decided. `ends` are tokens
    without a text whose names are among the stop strings.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stops: Iterable[str],
        ends: Collection[int] = (),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops, self._ends = tuple(stops), ends
        self._held: list[Piece] = []
        self.text = ""  # shown so far
        self.stopped = False

    def push(self, token: int, origin: Origin) -> list[Piece]:
        """Add a token; return the pieces that may be shown now, [] if the text stopped before.

        A stop string, which is not shown, stops the text; a token of `ends` does so after what was
        withheld.
        """
        if self.stopped:
            return []
        if token in self._ends:
            pieces = self.close()
            self.stopped = True
            return pieces
        self._held.append(Piece(self._detokenizer.push(token), origin))
        return self._release()

    def close(self) -> list[Piece]:
        """Return the withheld pieces, up to a stop string that completes; [] if stopped before."""
        if self.stopped:
            return []
        origin = self._held[-1].origin if self._held else Origin.PLAIN
        self._held.append(Piece(self._detokenizer.flush(), origin))
        pieces = self._release()
        return pieces if self.stopped else pieces + self._show(len(self._tail()))

    def _release(self) -> list[Piece]:
        tail = self._tail()
        starts = [at for stop in self._stops if (at := tail.find(stop)) >= 0]
        if starts:
            self.stopped = True
            return self._show(min(starts))
        return self._show(len(tail) - self._undecided(tail))

    def _tail(self) -> str:
        return "".join(piece.text for piece in self._held)

    def _undecided(self, tail: str) -> int:
        """Return the length of the longest suffix of `tail` that is the start of a stop string."""
        ends = (
            n
            for stop in self._stops
            for n in range(min(len(stop) - 1, len(tail)), 0, -1)
            if tail.endswith(stop[:n])
        )
        return max(ends, default=0)

    def _show(self, length: int) -> list[Piece]:
        """Return the first `length` withheld characters, a piece a token, and add them to `text`.

        These are withheld no longer; once the text has stopped, the rest is dropped.
        """
        pieces, kept = [], []
        for text, origin in self._held:
            now, later = text[:length], text[length:]
            length -= len(now)
            if now:
                pieces.append(Piece(now, origin))
            if later:
                kept.append(Piece(later, origin))
        self._held = [] if self.stopped else kept
        self.text += "".join(piece.text for piece in pieces)
        return pieces


def stop_strings(transcript: Transcript) -> Callable[[Sequence[int]], bool]:
    """Return a `types.Stop` that pushes the newest token to `transcript`; true once that stops."""

    def stop(tokens: Sequence[int]) -> bool:
        transcript.push(tokens[-1], Origin.PLAIN)
        return transcript.stopped

    return stop


class PromptError(DataError, ValueError):
    """A prompt that cannot be continued."""


def to_token_ids(prompt: Sequence[int], rows: int | None = None) -> list[int]:
    """Convert `prompt` to plain integers; those of numpy and torch count, floats do not.

    Raises PromptError for no ids, an entry that is no integer, is negative, or not below `rows`,
    the rows of the model's embedding; None: no upper bound.
    """
    ids: list[int] = []
    try:
        ids.extend(map(index, prompt))
    except (TypeError, RuntimeError) as error:  # RuntimeError: a tensor that is no single integer
        raise PromptError(
            f"token {len(ids)} of the prompt, a {type(prompt).__name__}, is no integer: expected "
            "text, or one list of token ids"
        ) from error
    if not ids:
        raise PromptError("the prompt has no tokens: expected at least one. Give a prompt")
    for at, token in enumerate(ids):
        if token < 0 or (rows is not None and token >= rows):
            last = "" if rows is None else f" to {rows - 1}"
            raise PromptError(
                f"token {at} of the prompt is {token}: expected an id from 0{last}. "
                "Encode the text with the model's own tokenizer"
            )
    return ids


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the longest common prefix of two sequences of one type."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
