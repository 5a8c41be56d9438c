"""Two tokenizers: the same, or refused."""

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from spsbench.errors import DataError
from spsbench.models.tokenizers import check_same_tokens, model_token_count, tokens_beyond


def test_same(tokenizer):
    check_same_tokens(tokenizer(), tokenizer())


def added(other):
    other.add_tokens(["<extra>"])


def normalised(other):
    other.backend_tokenizer.normalizer = normalizers.NFD()


def ended(other):
    other.eos_token = "<|end|>"


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"swap": True}, None),
        ({"merges": False}, None),
        *(({}, c) for c in (added, normalised, ended)),
    ],
)
def test_another_token_rule_or_special_token_is_refused(tokenizer, options, change):
    other = tokenizer(**options)
    if change is not None:
        change(other)
    with pytest.raises(DataError):
        check_same_tokens(tokenizer(), other)


class InPython(PreTrainedTokenizerFast):
    """A tokenizer without rules to compare."""

    backend_tokenizer = None


def test_texts_are_compared_where_rules_cannot_be(tokenizer):
    ours, theirs = tokenizer(), tokenizer(merges=False)
    ours.__class__ = theirs.__class__ = InPython
    with pytest.raises(DataError):
        check_same_tokens(ours, theirs)


def test_padding_rows_are_no_tokens(tokenizer):
    assert model_token_count("target", 272, tokenizer()) == 264
    with pytest.raises(DataError):
        model_token_count("target", 258, tokenizer())


def test_special_tokens_may_lie_beyond_the_rows(tokenizer):
    assert model_token_count("target", 263, tokenizer()) == 263
    assert tokens_beyond(tokenizer(), 262) == ["<|assistant|>", "<|end|>"]
    assert tokens_beyond(tokenizer(), 264) == []
