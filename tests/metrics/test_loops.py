"""Texts that repeat themselves are told apart from those that do not."""

import pytest

from spsbench.metrics.texts import distinct_bigrams, ends_in_loop


@pytest.mark.parametrize(
    ("tokens", "loops"),
    [
        ([5] * 8, True),
        ([1, 2, 3, *[7, 8] * 4], True),
        ([9, *range(20), *range(20), *range(20)], True),
        ([1, 2, 3, *[7, 8] * 4, 1], False),
        ([5] * 3, False),  # an ellipsis is none
        (list(range(50)), False),
        ([], False),
    ],
)
def test_loops(tokens, loops):
    assert ends_in_loop(tokens) is loops


def test_bigrams():
    assert distinct_bigrams([1, 2, 3]) == 1
    assert distinct_bigrams([1, 1, 1, 1, 1]) == 0.25
