"""One tokenizer's tokens as another's: what they write, windows against whole texts, both ways."""

import random
from functools import cache
from itertools import product

import pytest

from spsbench.models.translation.translator import ByText, WordTokenizer
from spsbench.models.translation.vocabulary import Vocabularies, Vocabulary
from tests.tongues import TONGUES

TEXTS = (
    "the cat sat on the mat and 12345 dogs ran to the old house in 1984. The End!",
    "def value(x):\n    return x + 12345\n\n\nfor  item in range(10):\n\tprint(item)\n",
    "na\u00efve \u65e5\u672c \U0001f469\u200d\U0001f469\u200d\U0001f467 \ufb01ne \u2167 \u0301e",
    "  two spaces, <s> and </s> and <unk> and <|turn|> as words; supercat",
)
LOSSLESS = ("bytes", "bytes, single digits", "marks", "specials in the middle")


@cache
def tokenizer(name):
    return TONGUES[name]()


@cache
def vocabulary(name):
    return Vocabulary.of(tokenizer(name))


def spelled(name, ids):
    parts = [vocabulary(name).bytes_of[i] for i in ids]
    assert all(part is not None for part in parts)
    return b"".join(part for part in parts if part is not None)


def plain(name, text):
    return tokenizer(name).encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.mark.parametrize("name", TONGUES)
def test_special_tokens_write_nothing_and_have_names(name):
    found, raw = vocabulary(name), tokenizer(name)
    assert all(found.bytes_of[i] is None for i in raw.all_special_ids)
    assert found.eos == raw.eos_token_id
    assert raw.unk_token_id not in found.names.values()
    if name == "specials in the middle":
        assert found.names.keys() >= {"<|turn|>", "<|tool|>"}
        assert found.by_bytes[b"supercat"] == raw.convert_tokens_to_ids("supercat")


def test_a_letter_is_preferred_to_its_byte():
    found, raw = vocabulary("marks"), tokenizer("marks")
    assert found.by_bytes[b"x"] == raw.convert_tokens_to_ids("x")
    assert found.by_bytes[b"\xf0"] == raw.convert_tokens_to_ids("<0xF0>")
    assert found.first == (raw.bos_token_id,)
    assert found.spaced
    assert vocabulary("bytes").first == ()
    assert not vocabulary("bytes").spaced


def grown(text, rng):
    cuts = sorted(rng.sample(range(1, len(text)), min(40, len(text) - 1)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("name", TONGUES)
def test_a_text_that_grows_has_the_tokens_of_the_whole(name):
    rng = random.Random(name)
    text = " ".join(rng.choice(TEXTS) for _ in range(8))
    asked = []
    words = vocabulary(name).words

    def counted(text):
        asked.append(len(text))
        return words(text)

    reader = WordTokenizer(counted)
    for part in grown(text, rng):
        reader.extend(part)
        assert reader.ids == plain(name, reader.text)
    assert sum(asked) < 0.5 * sum(len(text) * i / 40 for i in range(40))


PAIRS = [(a, b) for a, b in product(LOSSLESS, TONGUES) if a != b]


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=str)
def test_a_text_is_followed_in_the_drafts_tokens(target, draft):
    """Whatever tokens the target writes it in, one by one."""
    text = TEXTS[0] if draft in ("pieces", "words", "lower case") else " ".join(TEXTS[:3])
    both = ByText(vocabulary(target), vocabulary(draft))
    ids = tokenizer(target).encode(text, split_special_tokens=True)
    found = None
    for end in range(1, len(ids) + 1):
        found = both.follow(ids[:end])
    assert found == [*vocabulary(draft).first, *plain(draft, text)]


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=str)
def test_what_was_drafted_comes_back_as_the_same_text(target, draft):
    both = ByText(vocabulary(target), vocabulary(draft))
    before, after = "the cat sat", " on the mat in 1984"
    both.follow(tokenizer(target).encode(before))
    new = plain(draft, after)
    if vocabulary(draft).bytes_of[new[0]] is not None and draft != "lower case":
        wrote = spelled(draft, new)
        assert spelled(target, both.back(new)) == wrote
    if draft in LOSSLESS and draft != "marks":
        joined = plain(target, before + after)
        assert joined[len(plain(target, before)) :] == both.back(new)


@pytest.mark.parametrize("draft", ["bytes, single digits", "marks"])
def test_a_character_that_is_not_whole_yet(draft):
    """Its bytes are fed as such, and those that are missing come back as such."""
    face = "\U0001f469".encode()
    both = ByText(vocabulary("bytes"), vocabulary(draft))
    ids = plain("bytes", "the cat \U0001f469")
    split = [
        i for i in range(1, len(ids)) if b"\x9f" in (vocabulary("bytes").bytes_of[ids[i]] or b"")
    ]
    found = both.follow(ids[: split[0]])
    begun = spelled("bytes", ids[: split[0]])
    assert spelled(draft, found[len(vocabulary(draft).first) :]).endswith(begun[-1:])
    missing = face[len(begun) - len(b"the cat ") :]
    pieces = vocabulary(draft).pieces(missing + b" sat")
    assert pieces is not None
    assert spelled("bytes", both.back(pieces)) == missing + b" sat"
    whole = both.follow(ids)
    assert spelled(draft, whole[len(vocabulary(draft).first) :]).endswith(b"the cat " + face)


def test_bytes_that_are_no_text_do_no_harm():
    target = vocabulary("bytes")
    both = ByText(target, vocabulary("marks"))
    broken = [target.by_bytes[bytes([byte])] for byte in (0xF0, 0x41, 0xFF, 0x80, 0xC3)]
    assert both.follow(broken) is not None
    for byte in range(256):
        both.back(vocabulary("marks").pieces(bytes([byte, 0x41])) or [])


def test_special_tokens_stay_where_both_have_them():
    names = ("bytes", "specials in the middle")
    here, there = (vocabulary(name) for name in names)
    both = ByText(there, here)
    turn, cat = there.names["<|turn|>"], plain(names[1], "the cat")
    assert both.follow([*cat, turn, *cat]) == plain(names[0], "the catthe cat")
    end = there.names["</s>"]
    both.restart()
    expected = [*plain(names[0], "the cat"), here.names["</s>"], *plain(names[0], "the cat")]
    assert both.follow([end, *cat, end, *cat]) == expected, "a BOS at the start is no text"


def test_the_end_of_a_text_is_translated():
    target, draft = vocabulary("bytes, single digits"), vocabulary("marks")
    both = ByText(target, draft)
    both.follow(plain("bytes, single digits", "the cat"))
    assert draft.eos is not None
    wrote = draft.pieces(b" sat") or []
    found = both.back([*wrote, draft.eos, *wrote])
    assert found[-1] == target.eos
    assert spelled("bytes, single digits", found[:-1]) == b" sat"
    assert both.ends(draft.eos)
    assert not both.ends(wrote[0])


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=str)
def test_pairs_write_the_same(target, draft):
    ours, theirs = vocabulary(target), vocabulary(draft)
    overlap = Vocabularies(ours, theirs).overlap
    assert len(set(overlap.pairs.values())) == len(overlap.pairs)
    assert list(overlap.pairs) == sorted(overlap.pairs)
    assert overlap.pairs[ours.eos] == theirs.eos
    for here, there in overlap.pairs.items():
        if ours.bytes_of[here] is not None:
            assert ours.bytes_of[here] == theirs.bytes_of[there]
        else:
            assert here in ours.names.values()
    assert 0 < overlap.text <= 1
    assert f"{len(overlap.pairs)} of its {theirs.size}" in str(overlap)


@pytest.mark.parametrize("target", ["words", "pieces"])
def test_text_that_the_target_cannot_write_is_not_proposed(target):
    both = ByText(vocabulary(target), vocabulary("bytes"))
    both.follow(tokenizer(target).encode("the cat"))
    unknown = tokenizer(target).unk_token_id
    assert unknown in plain(target, " the \u5b57 cat")
    proposed = both.back(plain("bytes", " the \u5b57 cat"))
    assert unknown not in proposed
    assert proposed == plain(target, " the \u5b57 cat")[: len(proposed)]
    assert target == "pieces" or proposed
