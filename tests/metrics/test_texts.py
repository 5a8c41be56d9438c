"""Greedy texts beside those of ArS, and what a report says of them."""

from dataclasses import replace

import pytest

from spsbench.metrics.text_checks import GreedyTexts, Same, distinct_bigrams, ends_in_loop
from spsbench.reports.remarks import sameness
from tests.simulation import cell, run


def test_texts_are_identical_where_both_arms_have_the_sample():
    cells = [cell(0, temperature=0.0), cell(4, temperature=0.0), cell(2, temperature=0.0)]
    greedy = GreedyTexts(cells)
    for number, each in enumerate(cells):
        for sample in "abc":
            made = next(run(each, 0.5, 1))
            odd = number == 2 and sample == "c"
            greedy.add(replace(made, sample=sample, tokens=[1, 2, 3 + odd]))
    greedy.add(replace(next(run(cells[1], 0.5, 1)), sample="d", tokens=[9]))  # in one arm only
    assert greedy.identical() == {cells[1].id}
    assert greedy.same(cells[2]) == Same(2, 3)
    lines = sameness(cells, greedy)
    assert "so of identical quality: xsum, greedy, SpS K=4 (3 of 3)." in lines[0]
    assert "SpS K=2 (2 of 3)" in lines[1]


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
