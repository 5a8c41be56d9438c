"""Copying: the pointer, its loss, and where it is set anew."""

from types import SimpleNamespace

import pytest

from spsbench.methods.drafters.copy import CopyDrafter
from tests.methods.drafters.asked import PREFILL, tokens_of

WORDS = ["?", "Fix", ":", "the", "cat", "sits", "on", "a", "mat", ".", "Answer"]


class Words:
    def decode(self, tokens, **_):
        return " ".join(WORDS[token] for token in tokens)


def marked(*markers):
    return CopyDrafter.open(
        SimpleNamespace(tokenizer=Words()), **dict(zip(("after", "before"), markers, strict=False))
    )


MARKED = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2]  # Fix : the cat sits on a mat . Answer :


def test_a_marked_source_is_expected_from_its_beginning():
    drafter = marked("Fix :", "Answer")
    drafter.begin(MARKED, PREFILL)
    assert tokens_of(drafter, MARKED, 3) == [3, 4, 5]
    assert tokens_of(drafter, MARKED, 20) == [3, 4, 5, 6, 7, 8, 9]
    assert tokens_of(drafter, [*MARKED, 3, 4], 2) == [5, 6]
    # "the cat lies": away from it, and nowhere; then "on" stands in one place
    assert tokens_of(drafter, [*MARKED, 3, 4, 0], 2) == []
    assert tokens_of(drafter, [*MARKED, 3, 4, 0, 6], 2) == [7, 8]
    assert tokens_of(drafter, [*MARKED, 3, 4, 0, 6, 7, 8, 9], 2) == []  # its end


def test_a_source_without_marks_is_the_prompt():
    prompt = [5, 6, 7, 8, 9, 1]
    drafter = CopyDrafter()
    drafter.begin(prompt, PREFILL)
    assert tokens_of(drafter, prompt, 3) == []  # nothing says where
    assert tokens_of(drafter, [*prompt, 6], 3) == [7, 8, 9]


def test_as_many_tokens_as_it_takes_must_agree():
    prompt = [1, 2, 3, 4, 2, 3, 5, 9]
    drafter = CopyDrafter()
    drafter.begin(prompt, PREFILL)
    assert tokens_of(drafter, [*prompt, 3], 2) == []  # 3 stands twice, what came before does not
    drafter.begin(prompt, PREFILL)
    assert tokens_of(drafter, [*prompt, 4, 2, 3], 2) == [5, 9]
    drafter.begin(prompt, PREFILL)
    assert tokens_of(drafter, [*prompt, 1, 2, 3], 2) == [4, 2]


def test_an_empty_source_and_bad_arguments():
    drafter = marked("Answer :")
    drafter.begin(MARKED, PREFILL)
    assert tokens_of(drafter, MARKED, 3) == []
    with pytest.raises(ValueError):
        CopyDrafter.open(SimpleNamespace(tokenizer=None), after="Fix")
