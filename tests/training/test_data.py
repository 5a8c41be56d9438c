"""Batches: functions of their position, every window once an epoch."""

import pytest
import torch

from spsbench.training.nano.data import Mix, Stream, encode, function_texts, news_texts
from spsbench.training.nano.tokenizer import train

STREAM = Stream(torch.arange(1000), seed=5)


def test_batch_depends_on_position_alone():
    later = STREAM.batch(7, 4, 16)
    for index in range(7):
        STREAM.batch(index, 4, 16)
    assert torch.equal(later, STREAM.batch(7, 4, 16))
    assert not torch.equal(later, Stream(STREAM.ids, seed=6).batch(7, 4, 16))


def test_epoch_visits_windows_once():
    per_epoch = (1000 - 16 - 1) // 16 // 4
    rows = torch.cat([STREAM.batch(index, 4, 16) for index in range(per_epoch)])
    assert rows.shape == (per_epoch * 4, 17)
    assert len(rows[:, 0].unique()) == len(rows)
    assert torch.equal(rows, rows[:, :1] + torch.arange(17))
    assert not torch.equal(STREAM.batch(0, 4, 16), STREAM.batch(per_epoch, 4, 16))


def test_refuses_a_stream_too_short():
    with pytest.raises(ValueError, match="1000 tokens"):
        STREAM.batch(0, 100, 16)


def test_documents_end_with_the_end_token():
    texts = [*news_texts(Mix(0, 5, 5), "train"), *function_texts(Mix(0, 5, 5), "train")]
    words = train(texts, 300)
    ids = encode(words, texts)
    assert int((ids == words.eos_token_id).sum()) == len(texts)
    assert words.decode(ids) == "".join(text + words.eos_token for text in texts)
