"""A tokenizer as translation sees it: what its tokens write, and where those of a text end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from spsbench.models.translation.spelling import written


class Tokens(NamedTuple):
    """The tokens of a text."""

    ids: list[int]
    ends: list[int] | None  # byte of the text at which each token ends; None = not known


class Words(Protocol):
    """The tokens of a text that stands alone, without special tokens."""

    def __call__(self, text: str) -> Tokens:
        """Names of special tokens in `text` are ordinary text."""


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer's tokens write, and how it cuts a text."""

    bytes_of: Sequence[bytes | None]  # of each id; None: it writes nothing, or nobody knows what
    words: Words
    names: dict[str, int] = field(default_factory=dict)  # special tokens by name
    first: tuple[int, ...] = ()  # ids that it puts before every text
    spaced: bool = False  # does it put a space before every text?
    bos: int | None = None
    eos: int | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Of one of transformers' tokenizers."""
        spelled = written(tokenizer)
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
        )

    @property
    def size(self) -> int:
        """Tokens that mean something."""
        return sum(content is not None for content in self.bytes_of) + len(self.names)

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """Bytes -> the token that is them; of several the first, as a rule.

        Of single bytes the last: SentencePiece has the byte and the letter, in this order, and
        makes of text the letter.
        """
        found: dict[bytes, int] = {}
        for index, content in enumerate(self.bytes_of):
            if content and (content not in found or len(content) == 1):
                found[content] = index
        return found

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.by_bytes), default=0)

    def pieces(self, content: bytes) -> list[int] | None:
        """Tokens that write `content`, each the longest that there is; None without any."""
        found: list[int] = []
        while content:
            for length in range(min(self.longest, len(content)), 0, -1):
                index = self.by_bytes.get(content[:length])
                if index is not None:
                    found.append(index)
                    content = content[length:]
                    break
            else:
                return None
        return found

    def after(self, before: str, text: str) -> list[int]:
        """The tokens of `text` where it follows `before`, whose own tokens stand.

        Where a token would reach over the border, or nothing can be known of ends, it is cut as if
        a new line came before it, else by the longest tokens; nothing where that fails too.
        """
        for start in (before, "\n"):
            border = len(start.encode())
            ids, ends = self.words(start + text)
            if ends is not None and border in (0, *ends):
                return ids[_until(ends, border) :]
        return self.pieces(text.encode()) or []


@dataclass(frozen=True)
class TokenizerWords:
    """One of transformers' tokenizers at work; `spelled` = what each of its ids writes."""

    tokenizer: Any
    spelled: Sequence[bytes | None]

    def __call__(self, text: str) -> Tokens:
        """Ends are sums of what the tokens write; where a text was changed, its own offsets."""
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        found = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_offsets_mapping=fast,
            verbose=False,
        )
        ids = [int(i) for i in found["input_ids"]]
        content = text.encode()
        parts = [self.spelled[i] if i < len(self.spelled) else None for i in ids]
        if all(part is not None for part in parts):
            whole = b"".join(part for part in parts if part is not None)
            if whole in (content, b" " + content):  # a space of its own before the first word
                lead = len(whole) - len(content)
                sums = accumulate(len(part) for part in parts if part is not None)
                return Tokens(ids, [end - lead for end in sums])
        if not fast:
            return Tokens(ids, None)
        at = [0, *accumulate(len(character.encode()) for character in text)]
        return Tokens(ids, [at[end] for _, end in found["offset_mapping"]])


def _until(ends: Sequence[int], border: int) -> int:
    """How many tokens end at or before `border`."""
    return sum(end <= border for end in ends)


def _first(tokenizer: Any) -> tuple[int, ...]:
    """The ids before the tokens of a text."""
    plain = tokenizer.encode("x", add_special_tokens=False)
    whole = tokenizer.encode("x")
    for at in range(len(whole) - len(plain) + 1):
        if whole[at : at + len(plain)] == plain:
            return tuple(whole[:at])
    return ()
