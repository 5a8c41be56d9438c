"""What each token of a tokenizer writes in the middle of a text, in bytes.

Bytes, since a token may hold a part of a character. How a token is written is a matter of the
tokenizer's decoder: letters that stand for bytes (byte-level BPE), a mark for a space and names of
bytes (SentencePiece), or whatever it decodes to after another token.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

MARK = "\u2581"  # SentencePiece's space
BATCH = 4096


def written(tokenizer: Any) -> list[bytes | None]:
    """Of each id its bytes; None for special tokens, and for ids that are none."""
    known = tokenizer.get_vocab()
    names: list[str | None] = [None] * (max(known.values(), default=-1) + 1)
    for name, index in known.items():
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
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    parts = list(_parts(decoder))
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
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
    return _decoded(tokenizer, names)


def _parts(decoder: Any) -> Iterator[dict[str, Any]]:
    """A decoder, or those that it is made of."""
    if isinstance(decoder, dict):
        yield decoder
        for part in decoder.get("decoders", ()):
            yield from _parts(part)


def byte_letters() -> list[str]:
    """[256] the letter that stands for each byte in byte-level BPE (Radford et al. 2019).

    What can be seen in Latin-1 stands for itself, the rest follows from U+0100 on.
    """
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    places = {byte: 0x100 + at for at, byte in enumerate(hidden)}
    return [chr(places.get(byte, byte)) for byte in range(256)]


def _of_letters(name: str, letters: dict[str, int]) -> bytes | None:
    """None for a name with other letters: no text is made of it."""
    if any(letter not in letters for letter in name):
        return None
    return bytes(letters[letter] for letter in name)


def _of_marks(name: str, marks: set[str], *, named: bool) -> bytes:
    if named and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    for mark in marks:
        name = name.replace(mark, " ")
    return name.encode()


def _decoded(tokenizer: Any, names: Sequence[str | None]) -> list[bytes | None]:
    """What each id adds to the text of another one; None for what is no whole character."""
    special = set(tokenizer.all_special_ids)
    anchor = next((i for i, n in enumerate(names) if n is not None and i not in special), 0)
    plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    before = tokenizer.decode([anchor], **plain)
    found: list[bytes | None] = []
    for start in range(0, len(names), BATCH):
        pairs = [[anchor, index] for index in range(start, min(start + BATCH, len(names)))]
        for text in tokenizer.batch_decode(pairs, **plain):
            new = text[len(before) :] if text.startswith(before) else None
            found.append(None if not new or "\ufffd" in new else new.encode())
    return found
