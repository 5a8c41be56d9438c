"""The tokenizer: loses nothing, adds nothing."""

import pytest
from transformers import AutoTokenizer

from spsbench.training.nano.tokenizer import END, train

TEXT = "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass  \n" * 3


def test_round_trip(tmp_path):
    train([TEXT], 280).save_pretrained(tmp_path)
    words = AutoTokenizer.from_pretrained(tmp_path)
    assert len(words) == 280
    assert words.eos_token == words.bos_token == END
    for text in (TEXT, " a  b\n\n ", "naïve 🙂 \x00\x7f", "don't ( x )"):
        ids = words(text)["input_ids"]
        assert words.eos_token_id not in ids
        assert words.decode(ids) == text


def test_refuses_a_vocabulary_that_the_text_cannot_fill():
    with pytest.raises(ValueError, match="wanted 5000"):
        train(["aa"], 5000)
