"""The ranking of acceptance rules: its shapes, its ceiling, and the kept table."""

import json

import pytest
import torch

import rules
from spsbench.loop.types import Drawn


def test_levels_are_the_parents_of_a_tree():
    assert rules.levels(2, 1) == (-1, -1, 0, 1)
    assert rules.is_chain(rules.levels(1, 1, 1))
    assert not rules.is_chain(rules.levels(2))


def test_rules_are_asked_only_for_drafts_that_they_take():
    chain = rules.fitting(rules.levels(1, 1), Drawn.IID)
    assert set(chain) == set(rules.NAMES)
    assert set(rules.fitting(rules.levels(2), Drawn.DISTINCT)) == {
        "match",
        "recursive",
        "traversal",
    }


def test_a_single_token_is_kept_as_often_as_the_laws_overlap_at_most():
    q, p = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    assert rules.transport(q, p, 1) == pytest.approx(0.7)
    assert rules.transport(q, p, 2) > 0.7


def test_rejection_keeps_one_over_the_greatest_ratio():
    """Of q = (1/2, 1/2) and p = (4/5, 1/5) a token is kept with 1 / M = 2/5."""
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    counts = []
    for token, chance in ((0, 0.8), (1, 0.2)):
        draft = rules.draft_of([token], torch.tensor([[0.8, 0.2]]), (-1,), Drawn.IID)
        values = torch.rand((4000, 8, 3), generator=torch.Generator().manual_seed(1))
        counts.append(chance * rules.kept(rules.rules()["rejection"], draft, q, values))
    assert sum(counts) == pytest.approx(0.4, abs=0.02)


def test_the_kept_table_has_each_rule_that_fits():
    table = json.loads(rules.OUT.read_text())
    assert set(table["options"]) == set(rules.OPTIONS)
    for section in ("bundled pair", *(f"random laws, {noise} apart" for noise in rules.NOISES)):
        drafts = [(shape, drawn) for shape, p in rules.SHAPES.items() for drawn in rules.ways(p)]
        assert len(table[section]) == len(drafts)
        for row, (shape, drawn) in zip(table[section], drafts, strict=True):
            assert set(row["kept"]) == set(rules.fitting(rules.SHAPES[shape], drawn))
    assert {row["shape"] for row in table["costs"]} >= set(rules.COSTED)
