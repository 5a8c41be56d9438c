"""Two tokenizers: the same, or refused."""

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from spsbench.errors import DataError
from spsbench.models.tokenizers import check_same, common_size, probes, tokens_beyond


def test_same(tokenizer):
    check_same(tokenizer(), tokenizer())


def test_first_different_token_is_named(tokenizer):
    with pytest.raises(DataError, match=r"token 0 is .* for the target") as caught:
        check_same(tokenizer(), tokenizer(swap=True))
    assert "\n" not in str(caught.value)


def test_added_token(tokenizer):
    more = tokenizer()
    more.add_tokens(["<extra>"])
    with pytest.raises(DataError, match=r"token 264 is nothing .*'<extra>'"):
        check_same(tokenizer(), more)


def test_other_merges(tokenizer):
    with pytest.raises(DataError, match="the model section"):
        check_same(tokenizer(), tokenizer(merges=False))


def test_other_normaliser(tokenizer):
    other = tokenizer()
    other.backend_tokenizer.normalizer = normalizers.NFD()
    with pytest.raises(DataError, match="the normalizer section"):
        check_same(tokenizer(), other)


def test_other_special_ids(tokenizer):
    other = tokenizer()
    other.eos_token = "<|end|>"
    with pytest.raises(DataError, match="eos_token_id"):
        check_same(tokenizer(), other)


class InPython(PreTrainedTokenizerFast):
    """A tokenizer without rules to compare."""

    backend_tokenizer = None


def test_texts_are_compared_where_rules_cannot_be(tokenizer):
    ours, theirs = tokenizer(), tokenizer(merges=False)
    ours.__class__ = theirs.__class__ = InPython
    with pytest.raises(DataError, match="expected the same tokens"):
        check_same(ours, theirs)


def test_probes():
    texts = probes(["<s>"])
    assert len(texts) == len(set(texts)) == 200


def test_padding_rows_are_no_tokens(tokenizer):
    assert common_size(272, 288, tokenizer()) == 264
    for sizes in ((258, 300), (300, 258)):
        with pytest.raises(DataError, match="ids up to 263"):
            common_size(*sizes, tokenizer())


def test_special_tokens_may_lie_beyond_the_rows(tokenizer):
    assert common_size(263, 272, tokenizer()) == common_size(272, 263, tokenizer()) == 263
    assert tokens_beyond(tokenizer(), 262) == ["<|assistant|>", "<|end|>"]
    assert tokens_beyond(tokenizer(), 264) == []
