"""Acceptance by sampling parameters and tokens: sums, and the committed tables."""

import json

import numpy as np
import pytest

import robustness
from spsbench.loop.sampling import Warp


def test_tokens_are_sorted_into_bins_and_weighted_by_the_shares_of_the_other_task():
    columns = [[1.0, 1, 1, 0.0], [0.5, 4, 0, 1.5], [0.5, 4, 0, 1.7], [0.0, 12, 0, 3.0]]
    articles = list(robustness.by_token("articles", [np.array(columns)]))
    of_length = {row["from"]: row for row in articles if row["factor"] == "characters"}
    assert {start: row["share"] for start, row in of_length.items()} == {1: 0.25, 4: 0.5, 9: 0.25}
    assert of_length[4]["alpha"] == {"mean": 0.5, "low": None, "high": None}
    code = list(robustness.by_token("code", [np.array(columns[:2])]))
    by_factor = {gap["factor"]: gap for gap in robustness.gaps([*articles, *code])}
    assert by_factor["entropy"] == {
        "factor": "entropy",
        "articles": 0.5,
        "code": 0.75,
        "articles as code": 0.75,  # half of its tokens are sure, half are not
    }


def test_a_warp_in_words():
    named = [Warp(temperature=0), Warp(top_k=5), Warp(temperature=0.8, top_p=0.95)]
    assert list(map(robustness.str_of, named)) == ["greedy", "T 1, top-k 5", "T 0.8, top-p 0.95"]


@pytest.mark.parametrize("path", sorted(robustness.OUT.glob("*.json")), ids=lambda path: path.stem)
def test_committed_tables_are_those_of_the_figures(path):
    values = json.loads(path.read_text())
    assert robustness.table(values) == path.with_suffix(".md").read_text()
    rows = {(row["task"], row["context"]) for row in values["grid"]}
    assert len(values["grid"]) == len(rows) * len(robustness.GRID)
    panels = robustness.warp_figure(values).panels
    assert [panel.title for panel in panels] == ["alpha, K = 4"] * 3 + ["tau, K = 4"] * 3
    assert len(robustness.token_figure(values).panels) == 6
