"""Two tokenizers: the same, or refused."""

import time

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from spsbench.errors import DataError
from spsbench.models.tokenizers import check_same, common_size, probes


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


def test_texts_are_compared_where_rules_cannot_be(tokenizer, monkeypatch):
    monkeypatch.setattr("spsbench.models.tokenizers._rules", lambda tokenizer: "")
    with pytest.raises(DataError, match="expected the same tokens"):
        check_same(tokenizer(), tokenizer(merges=False))


def test_probes():
    texts = probes(["<s>"])
    assert len(texts) == len(set(texts)) == 200


def test_large_vocabularies_are_compared_quickly():
    def large():
        vocab = {f"t{i:06d}": i for i in range(50_000)}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel()
        return PreTrainedTokenizerFast(tokenizer_object=backend)

    one, other = large(), large()
    start = time.process_time()
    check_same(one, other)
    assert time.process_time() - start < 1  # seconds; 0.2 on a quiet core


def test_padding_rows_are_no_tokens(tokenizer):
    assert common_size(272, 288, tokenizer()) == 264
    for sizes in ((263, 300), (300, 263)):
        with pytest.raises(DataError, match="ids up to 263"):
            common_size(*sizes, tokenizer())
