"""Two sets of rotary factors, over packed models."""

import copy

import pytest

from spsbench.extensions.cpu.fast import Fast
from tests.engines.test_longrope import BORDER, VOCAB, ours, pair, theirs

pytestmark = pytest.mark.numeric

__all__ = ["pair"]


@pytest.mark.parametrize("length", [BORDER - 8, BORDER, BORDER + 1, BORDER + 9])
def test_the_text_is_that_of_transformers(pair, length):
    prompt, new = [(5 * i + 3) % VOCAB for i in range(length)], 16
    prepared = [copy.deepcopy(model) for model in pair]
    for model in prepared:
        Fast().prepare(model, threads=1)
    text = theirs(pair[0], prompt, new)
    for k in 0, 4:
        assert ours(Fast(), prepared, prompt, new, k, False) == text
