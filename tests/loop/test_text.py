"""Tokens to text: bytes over several tokens, stop strings, origins."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spsbench.errors import DataError
from spsbench.loop.text import (
    PATIENCE,
    Detokenizer,
    Origin,
    Piece,
    PromptError,
    Transcript,
    stop_strings,
    to_token_ids,
)
from tests.folders import byte_tokenizer
from tests.tongues import TONGUES

ACCEPTED, RECOVERED, BONUS, PLAIN, _ = Origin


class Words:
    """A tokenizer whose token i is the i-th of the given texts."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(self.texts[i] for i in token_ids)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def streamed(tokenizer, ids, prompt=()):
    detokenizer = Detokenizer(tokenizer, prompt)
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


def test_a_character_comes_with_its_last_byte(tokenizer):
    ids = tokenizer.encode("é→")
    assert len(ids) == 5
    assert streamed(tokenizer, ids) == ["", "é", "", "", "→", ""]


def test_patience_with_such_bytes_ends(tokenizer):
    lone = tokenizer.encode("→")[1]
    texts = streamed(tokenizer, [lone] * (PATIENCE + 1))
    assert texts[: PATIENCE - 1] == [""] * (PATIENCE - 1)
    assert texts[PATIENCE - 1] == "\ufffd" * PATIENCE
    assert "".join(texts) == "\ufffd" * (PATIENCE + 1)


@settings(max_examples=20, derandomize=True, database=None, deadline=None)
@given(text=st.text("the cat é→日👩\u200d💻 \n\t", max_size=40))
def test_the_stream_is_the_whole_text(text):
    tokenizer = byte_tokenizer()
    assert "".join(streamed(tokenizer, tokenizer.encode(text))) == text


def whole_part(tokenizer, prompt):
    """The text of a prompt up to its last whole character."""
    cuts = [
        tokenizer.decode(prompt[:end], skip_special_tokens=True)
        for end in range(len(prompt), -1, -1)
    ]
    return next(text for text in cuts if not text.endswith("\ufffd"))


@pytest.mark.parametrize("tongue", ["marks", "bytes"])
@pytest.mark.parametrize(
    "text", ["Hi🙂🙂", "🙂🙂🙂🙂🙂", "日本語のテキスト", "the é日 🙂 on é→👩\u200d💻 mat 語"]
)
def test_a_prompt_cut_at_any_byte_is_gone_on_as_by_one_decode(text, tongue):
    tokenizer = TONGUES[tongue]()
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    for cut in range(1, len(ids)):
        before = whole_part(tokenizer, ids[:cut])
        pieces = streamed(tokenizer, ids[cut:], ids[:cut])
        assert before + "".join(pieces) == whole
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("tongue", TONGUES)
def test_spaces_come_out_as_by_one_decode_wherever_the_prompt_ends(tongue):
    tokenizer = TONGUES[tongue]()
    ids = tokenizer.encode("the cat, the  dog\n sat on 1984 ; return supercat + 5 .")
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    for cut in range(len(ids)):
        before = tokenizer.decode(ids[:cut], skip_special_tokens=True)
        assert before + "".join(streamed(tokenizer, ids[cut:], ids[:cut])) == whole


def test_a_stop_string_fires_at_its_last_byte_after_a_prompt_of_such_characters():
    tokenizer = TONGUES["marks"]()
    ids = tokenizer.encode("Hi🙂🙂🙂a")
    prompt, after = ids[:-5], ids[-5:]
    stop = stop_strings(Transcript(tokenizer, prompt, ["🙂"]))
    assert [stop(after[:end]) for end in range(1, 5)] == [False, False, False, True]


def test_a_replacement_character_of_the_prompt_is_not_repeated():
    for tokenizer in (TONGUES["marks"](), TONGUES["bytes"]()):
        for prompt in ("a\ufffd", "\ufffd" * 9):
            ids = tokenizer.encode(prompt + "the cat")
            start = len(tokenizer.encode(prompt))
            assert "".join(streamed(tokenizer, ids[start:], ids[:start])) == "the cat"


def written(texts, *stops):
    """The pieces after each token, and after the end."""
    transcript = Transcript(Words(*texts), [], stops)
    shown = [transcript.push(i, PLAIN) for i in range(len(texts))]
    return [*shown, transcript.close()], transcript


def test_every_piece_keeps_its_origin():
    transcript = Transcript(Words("ab", "cS", "Td", "e"), [], ["STOP"])
    origins = ACCEPTED, RECOVERED, BONUS, PLAIN
    shown = [transcript.push(i, origin) for i, origin in enumerate(origins)]
    shown.append(transcript.close())
    assert [piece for pieces in shown for piece in pieces] == [
        Piece("ab", ACCEPTED),
        Piece("c", RECOVERED),
        Piece("S", RECOVERED),
        Piece("Td", BONUS),
        Piece("e", PLAIN),
    ]


def words(most):
    return st.text("ab", min_size=1, max_size=most)


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.lists(words(3), min_size=1, max_size=12), st.lists(words(5), max_size=3))
def test_token_by_token_is_the_whole_text_cut_at_the_earliest_stop(texts, stops):
    shown, transcript = written(texts, *stops)

    # The generation ends with the token that completes a stop, so only that prefix counts.
    whole, cut = "", None
    for text in texts:
        whole += text
        starts = [whole.find(stop) for stop in stops if stop in whole]
        if starts:
            cut = min(starts)
            break
    assert transcript.text == whole[:cut]
    assert transcript.stopped == (cut is not None)
    assert "".join(piece.text for pieces in shown for piece in pieces) == transcript.text


# What is a prompt of token ids, and what gets a clear line.


def test_integers_of_any_library_are_ids():
    for prompt in ([3, 1], (3, 1), numpy.array([3, 1]), torch.tensor([3, 1]), iter([3, 1])):
        ids = to_token_ids(prompt, rows=4)
        assert ids == [3, 1]
        assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2.0],
        torch.tensor([1.0, 2.0]),
        numpy.array([1.5]),
        torch.tensor([[1, 2, 3]]),
        [[1, 2]],
        ["a"],
        [1, None],
        [1, -1],
        [4],
        7,
        [],
        [None] * 3 + ["x" * 900],
    ],
    ids=str,
)
def test_what_is_no_prompt(prompt):
    with pytest.raises(PromptError) as caught:
        to_token_ids(prompt, rows=4)
    assert isinstance(caught.value, DataError)
    assert len(str(caught.value)) < 200
