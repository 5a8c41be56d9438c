"""A tokenizer as translation uses it: the bytes of its tokens, and where a text's tokens end.

Bytes, since a token may hold a part of a character. How a token is written depends on the
tokenizer's decoder: letters that stand for bytes (byte-level BPE), a mark for a space and names of
bytes (SentencePiece), or the text that it decodes to after another token.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from transformers.convert_slow_tokenizer import bytes_to_unicode

MARK = "\u2581"  # SentencePiece's space
BATCH = 4096

SAMPLE = Path(__file__).with_name("sample.txt")  # by which vocabularies are compared


class TokensOfText(NamedTuple):
    """The tokens of a text, with their ends."""

    ids: list[int]
    ends: list[int] | None  # byte of the text at which each token ends; None = not known


Words = Callable[[str], TokensOfText]
"""Returns the tokens of a text that stands alone; names of special tokens are ordinary text."""


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of a tokenizer's tokens, and the way it cuts a text."""

    bytes_of: Sequence[bytes | None]  # by id; None: it writes nothing, or nobody knows what
    words: Words
    names: dict[str, int] = field(default_factory=dict)  # special tokens by name
    first: tuple[int, ...] = ()  # ids that it puts before every text
    spaced: bool = False  # does it put a space before every text?
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None  # stands for text that it cannot write

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Make the vocabulary of a transformers tokenizer; padding and unknown are no names."""
        spelled = token_bytes(tokenizer)
        words = TokenizerWords(tokenizer, spelled)
        special = {int(i) for i in tokenizer.all_special_ids}
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        name_of = tokenizer.convert_ids_to_tokens
        unknown = {tokenizer.unk_token_id, tokenizer.pad_token_id}
        return cls(
            bytes_of=spelled,
            words=words,
            names={str(name_of(i)): i for i in sorted(special - unknown)},
            first=_first(tokenizer),
            spaced=any((spelled[i] or b"").startswith(b" ") for i in words("x").ids[:1]),
            bos=tokenizer.bos_token_id,
            eos=tokenizer.eos_token_id,
            unknown=tokenizer.unk_token_id,
        )

    @property
    def size(self) -> int:
        """Return the number of tokens that mean something."""
        return sum(content is not None for content in self.bytes_of) + len(self.names)

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """Return bytes -> the token that writes them; of several the first, as a rule.

        Of single bytes the last: SentencePiece has the byte and the letter, in this order, and
        encodes text to the letter.
        """
        ids: dict[bytes, int] = {}
        for index, content in enumerate(self.bytes_of):
            if content and (content not in ids or len(content) == 1):
                ids[content] = index
        return ids

    @cached_property
    def longest(self) -> int:
        """Return the number of bytes of the longest token."""
        return max(map(len, self.by_bytes), default=0)

    def pieces(self, content: bytes) -> list[int] | None:
        """Cut `content` from the left into the longest tokens each; None: a byte has no token."""
        ids: list[int] = []
        while content:
            for length in range(min(self.longest, len(content)), 0, -1):
                index = self.by_bytes.get(content[:length])
                if index is not None:
                    ids.append(index)
                    content = content[length:]
                    break
            else:
                return None
        return ids

    def after(self, before: str, text: str) -> list[int]:
        """Return the tokens of `text` where it follows `before`, whose own tokens are fixed.

        Where a token would cross the border, or ends are unknown, the text is cut as if a new line
        came before it, else by the longest tokens; [] where that fails too.
        """
        for start in (before, "\n"):
            border = len(start.encode())
            ids, ends = self.words(start + text)
            if ends is not None and border in (0, *ends):
                return ids[sum(end <= border for end in ends) :]
        return self.pieces(text.encode()) or []


@dataclass(frozen=True)
class TokenizerWords:
    """The `Words` of a transformers tokenizer; `spelled` = the bytes of each of its ids."""

    tokenizer: Any
    spelled: Sequence[bytes | None]

    def __call__(self, text: str) -> TokensOfText:
        """Tokenize; ends are sums of bytes, or the tokenizer's offsets where it changes text."""
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        encoded = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_offsets_mapping=fast,
            verbose=False,
        )
        ids = [int(i) for i in encoded["input_ids"]]
        content = text.encode()
        parts = [self.spelled[i] if i < len(self.spelled) else None for i in ids]
        if all(part is not None for part in parts):
            whole = b"".join(part for part in parts if part is not None)
            if whole in (content, b" " + content):  # a space of its own before the first word
                lead = len(whole) - len(content)
                sums = accumulate(len(part) for part in parts if part is not None)
                return TokensOfText(ids, [end - lead for end in sums])
        if not fast:
            return TokensOfText(ids, None)
        at = [0, *accumulate(len(character.encode()) for character in text)]
        return TokensOfText(ids, [at[end] for _, end in encoded["offset_mapping"]])


def _first(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before the tokens of a text, such as a BOS."""
    plain = tokenizer.encode("x", add_special_tokens=False)
    whole = tokenizer.encode("x")
    for at in range(len(whole) - len(plain) + 1):
        if whole[at : at + len(plain)] == plain:
            return tuple(whole[:at])
    return ()


@dataclass(frozen=True)
class SharedTokens:
    """The draft model's tokens that are tokens of the target."""

    pairs: Mapping[int, int]  # the target's id -> the draft's; each id once, in order
    target: int  # tokens of each
    draft: int
    text: float  # share of a sample text's tokens, as the target cuts it, that the draft has too

    def __str__(self) -> str:
        return (
            f"{len(self.pairs):,} of its {self.draft:,} tokens are among the target's "
            f"{self.target:,}, which are {self.text:.0%} of a sample text"
        )


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of a target and of a draft model, where they differ."""

    target: Vocabulary
    draft: Vocabulary

    @cached_property
    def overlap(self) -> SharedTokens:
        """Return the target's tokens that the draft has too, and their share of a sample text.

        They match by bytes, special ones by name, and the two EOS tokens match each other alone.
        """
        ours, theirs = self.target, self.draft
        by_bytes = theirs.by_bytes
        pairs = {i: by_bytes[b] for b, i in ours.by_bytes.items() if b in by_bytes}
        names = ours.names.keys() & theirs.names.keys()
        pairs |= {ours.names[name]: theirs.names[name] for name in names}
        if ours.eos is not None and theirs.eos is not None:
            pairs = {i: other for i, other in pairs.items() if other != theirs.eos}
            pairs[ours.eos] = theirs.eos
        ids = ours.words(SAMPLE.read_text(encoding="utf-8")).ids
        return SharedTokens(
            pairs=dict(sorted(pairs.items())),
            target=ours.size,
            draft=theirs.size,
            text=sum(token_id in pairs for token_id in ids) / max(len(ids), 1),
        )


def token_bytes(tokenizer: Any) -> list[bytes | None]:
    """Return the bytes that each id writes; None for special tokens, unused and unknown ids."""
    vocabulary = tokenizer.get_vocab()
    names: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for name, index in vocabulary.items():
        names[index] = name
    special = set(tokenizer.all_special_ids)
    added = {}
    for index, token in tokenizer.added_tokens_decoder.items():
        added[index] = str(token.content).encode()
        if token.special:
            special.add(index)
    spelled = _by_decoder(tokenizer, names)
    return [
        None if index in special or name is None else added.get(index, spelled[index])
        for index, name in enumerate(names)
    ]


def _by_decoder(tokenizer: Any, names: Sequence[str | None]) -> list[bytes | None]:
    """Return, by id, the bytes that the decoder writes for each name; None: no name, or no text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    parts = list(_parts(decoder))
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
        return [None if name is None else _of_letters(name, letters) for name in names]
    marks = {part.get("replacement", MARK) for part in parts if part.get("type") == "Metaspace"}
    marks |= {
        str(part.get("pattern", {}).get("String"))
        for part in parts
        if part.get("type") == "Replace" and part.get("content") == " "
    }
    if marks:
        named = "ByteFallback" in kinds
        return [None if n is None else _of_marks(n, marks, named=named) for n in names]
    return _decode_ids(tokenizer, names)


def _parts(decoder: Any) -> Iterator[dict[str, Any]]:
    """Yield the `decoder` of a tokenizer.json and the parts in it, at any depth; of None none."""
    if isinstance(decoder, dict):
        yield decoder
        for part in decoder.get("decoders", ()):
            yield from _parts(part)


def _of_letters(name: str, letters: dict[str, int]) -> bytes | None:
    """Convert a name in byte letters to bytes; None for a name with other letters."""
    if any(letter not in letters for letter in name):
        return None
    return bytes(letters[letter] for letter in name)


def _of_marks(name: str, marks: set[str], *, named: bool) -> bytes:
    if named and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    for mark in marks:
        name = name.replace(mark, " ")
    return name.encode()


def _decode_ids(tokenizer: Any, names: Sequence[str | None]) -> list[bytes | None]:
    """Return the bytes that each id adds after a named one; None: no or incomplete characters."""
    special = set(tokenizer.all_special_ids)
    anchor = next((i for i, n in enumerate(names) if n is not None and i not in special), 0)
    plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    before = tokenizer.decode([anchor], **plain)
    pieces: list[bytes | None] = []
    for start in range(0, len(names), BATCH):
        pairs = [[anchor, index] for index in range(start, min(start + BATCH, len(names)))]
        for text in tokenizer.batch_decode(pairs, **plain):
            new = text[len(before) :] if text.startswith(before) else None
            pieces.append(None if not new or "\ufffd" in new else new.encode())
    return pieces
