"""Translation between vocabularies: tokens for the draft model to read, and its drafts back.

A mistranslation costs acceptance and nothing else: verification uses the target's tokens alone, and
the probs that they were drawn from.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from spsbench.models.translation.vocabulary import TokensOfText, Vocabulary, Words

WINDOW = 24  # tokens that are cut again with what is new
LEAD = 4  # tokens that may be cut otherwise because the window begins with them
BEFORE = 48  # characters of the text that new text is cut after


class Translator:
    """A translator between the target's tokens and the draft model's, along one text.

    This one is the identity, for models with one vocabulary.
    """

    def follow(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the draft's tokens of a text, which extends the text of the last call.

        None where the text ends in a part of a character that the draft cannot write.
        """
        return list(tokens)

    def restart(self) -> None:
        """Forget the text."""

    def back(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's tokens for the draft after the text, as far as it is text."""
        return list(drafted)

    def ends(self, token: int) -> bool:
        """Return whether nothing after the draft's own `token` can be translated."""
        return False


class ByText(Translator):
    """A translator between two vocabularies, by the bytes that tokens write.

    The draft's own first tokens (a BOS) precede the text; the target's BOS is no part of it.
    Special tokens that both have by name stay, others are left out.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target, self._draft = target, draft
        self._named = {
            ours: draft.names[name] for name, ours in target.names.items() if name in draft.names
        }
        self.restart()

    def restart(self) -> None:
        self._read = 0  # tokens of the target
        self._done: list[int] = list(self._draft.first)  # before the last special token
        self._reader = WordTokenizer(self._draft.words)
        self._bytes = _decoder()
        self._begun = False  # is there text?

    def follow(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the draft's tokens of the text of all `tokens`, which extends the last call's.

        None where it ends in a part of a character that the draft cannot write.
        """
        text = ""
        for at in range(self._read, len(tokens)):
            if (content := self._written(tokens[at])) is not None:
                text += self._bytes.decode(content)
            elif not (at == 0 and tokens[at] == self._target.bos):
                self._go_on(text)
                text = ""
                self._pass(tokens[at])
        self._go_on(text)
        self._read = len(tokens)
        tail = self._draft.pieces(self._unfinished)
        return None if tail is None else [*self._done, *self._reader.ids, *tail]

    def back(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's tokens for the drafted ones, up to what is no text or unknown.

        [] where the bytes that end an unfinished character have no tokens. Those of one begun last
        follow if they have tokens. The target's EOS is last where the draft ended the text.
        """
        content, end = self._content_and_end(drafted)
        target_ids: list[int] = []
        if head := _missing(self._unfinished, content):
            target_ids = self._target.pieces(content[:head]) or []
            if not target_ids:
                return []
        decoder = _decoder()
        text = decoder.decode(content[head:])
        if text:
            before = self._reader.text[-BEFORE:] if not head else ""
            target_ids += self._target.after(before, text)
        if self._target.unknown in target_ids:
            return target_ids[: target_ids.index(self._target.unknown)]
        tail = self._target.pieces(decoder.getstate()[0])
        if tail is None or (text and not target_ids):
            return target_ids
        return [*target_ids, *tail, *end]

    def ends(self, token: int) -> bool:
        return self._draft.bytes_of[token] is None

    def _content_and_end(self, drafted: Sequence[int]) -> tuple[bytes, list[int]]:
        """Return the bytes before the first token without any, and target's EOS if that is EOS."""
        content, eos = b"", self._target.eos
        for token in drafted:
            if (part := self._draft.bytes_of[token]) is None:
                return content, [eos] if token == self._draft.eos and eos is not None else []
            content += part
        return content, []

    def _written(self, token: int) -> bytes | None:
        bytes_of = self._target.bytes_of
        return bytes_of[token] if token < len(bytes_of) else None

    def _go_on(self, text: str) -> None:
        """Append text; the first loses the space that the target puts before its texts, if any."""
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix(" ") if self._target.spaced else text
        self._reader.extend(text)

    def _pass(self, token: int) -> None:
        """Continue after a special token that the draft has by name, or leave one out."""
        if (named := self._named.get(token)) is not None:
            self._done += [*self._reader.ids, named]
            self._reader = WordTokenizer(self._draft.words)
            self._bytes.reset()

    @property
    def _unfinished(self) -> bytes:
        """Return the bytes of an incomplete last character."""
        state: bytes = self._bytes.getstate()[0]
        return state


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _missing(begun: bytes, content: bytes) -> int:
    """Return how many bytes of `content` complete the character `begun`; 0 of b"", else all."""
    if not begun:
        return 0
    for length in range(1, len(content) + 1):
        decoder = _decoder()
        decoder.decode(begun + content[:length])
        if not decoder.getstate()[0]:
            return length
    return len(content)


@dataclass
class WordTokenizer:
    """An incremental tokenization by `words` equal to the whole; only a window is cut again.

    A tokenizer's result at a place depends on nearby text. So the last tokens are cut again with
    the text after them, and the new tokens hold from the first border on, some way into the window,
    that both cuts share. A text without such a border is cut whole.
    """

    words: Words
    text: str = ""
    ids: list[int] = field(default_factory=list)
    _ends: list[int] | None = field(default_factory=list)
    _content: bytes = b""

    def extend(self, more: str) -> None:
        """Append `more`, and bring `ids` up to date, by a window of the text or by all of it."""
        if not more:
            return
        self.text += more
        self._content += more.encode()
        if self._ends is None or len(self.ids) <= 2 * WINDOW or not self._windowed(self._ends):
            self.ids, self._ends = self.words(self.text)

    def _windowed(self, ends: list[int]) -> bool:
        """Cut the last of `ids`, `ends` in bytes, again; False: no shared border, no change."""
        cut = len(ends) - WINDOW
        while cut > 0 and self._splits(ends[cut - 1]):
            cut -= 1
        if cut <= 0:
            return False
        start = ends[cut - 1]
        window: TokensOfText = self.words(self._content[start:].decode())
        if window.ends is None:
            return False
        kept = _places(ends, cut + LEAD)
        for end, at in _places(window.ends, LEAD).items():
            if (here := kept.get(start + end)) is not None:
                self.ids[here:] = window.ids[at:]
                ends[here:] = [start + end_in_window for end_in_window in window.ends[at:]]
                return True
        return False

    def _splits(self, at: int) -> bool:
        """Return whether byte `at` is inside a character."""
        return at < len(self._content) and self._content[at] & 0xC0 == 0x80


def _places(ends: list[int], first: int) -> dict[int, int]:
    """Map each end to the numbers of tokens up to it, from the token `first` on."""
    return {end: at for at, end in enumerate(ends[first:], first + 1)}
