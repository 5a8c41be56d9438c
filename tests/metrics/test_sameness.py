"""Greedy texts beside those of ArS, and what a report says of them."""

from dataclasses import replace

from spsbench.metrics.texts import GreedyTexts, Same
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
    assert "SpS K=2: 2 of 3 are identical to those of ArS" in lines[1]
