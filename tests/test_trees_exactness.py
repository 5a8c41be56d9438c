"""The rules for trees, proved: a round of each shape that a rule accepts is exact.

By the enumeration of `tests/test_exactness.py`, the rules' thresholds being found by asking them.
Each sampled shape is walked with siblings drawn independently and without replacement, and trees by
rule as they are. `tests/oracles/defects.py` says what these walks see.
"""

import pytest

from spsbench.audit.exact.enumeration import prove
from spsbench.audit.exact.tables import ToyPair
from spsbench.loop.types import Drawn
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests.oracles.defects import PLAIN, SPARSE, WIDE, WIDER, tree_round

MIXED, WIDE_MIXED = ToyPair(2, 4), ToyPair(3, 4)

FORK = (-1, -1, 0)  # two children, one below the first
SHAPES = {
    "siblings": (-1, -1),
    "three siblings": (-1, -1, -1),
    "fork": FORK,
    "two chains": (-1, -1, 0, 1),
    "stem": (-1, 0, 0),
    "tree": (-1, -1, 0, 0, 1),
    "chain by chain": (-1, 0, -1, 2),
    "four siblings": (-1, -1, -1, -1),
    "two forks": (-1, -1, 0, 0, 1, 1),
}
RULES = (Traversal(), Recursive(), SpecTr(), Match())
by_name = {"ids": lambda part: type(part).__name__}


def proof(rule, parents, drawn, pair, **more):
    return prove(tree_round(rule, parents, drawn, pair, **more))


SAMPLE = (
    ("stem", Drawn.DISTINCT, PLAIN),
    ("fork", Drawn.IID, PLAIN),
    ("siblings", Drawn.DISTINCT, WIDE),
    ("three siblings", Drawn.IID, PLAIN),
)
QUICK = (
    *((rule, *row) for rule in RULES[:2] for row in SAMPLE),
    (Traversal(), "three siblings", Drawn.DISTINCT, WIDER),
    (SpecTr(), "siblings", Drawn.IID, PLAIN),
    (SpecTr(), "three siblings", Drawn.IID, SPARSE),
    (SpecTr(), "two chains", Drawn.IID, PLAIN),
)


@pytest.mark.parametrize(("rule", "shape", "drawn", "pair"), QUICK)
def test_a_sample_of_sampled_trees(rule, shape, drawn, pair):
    assert proof(rule, SHAPES[shape], drawn, pair).exact


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, **by_name)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drawn", [Drawn.IID, Drawn.DISTINCT])
def test_every_sampled_tree(rule, shape, drawn):
    if rule.refuses(drawn, True):
        pytest.skip("refused")
    for pair in PLAIN, MIXED:
        assert proof(rule, SHAPES[shape], drawn, pair).exact
    assert proof(rule, SHAPES[shape], drawn, WIDE, warp={"temperature": 0.0}).exact
    if len(SHAPES[shape]) < 4:
        for pair in WIDE, WIDE_MIXED:
            assert proof(rule, SHAPES[shape], drawn, pair, warp={"top_k": 2}).exact
            assert proof(rule, SHAPES[shape], drawn, pair, prompt=(2,)).exact
        assert proof(rule, SHAPES[shape], drawn, WIDER).exact


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES[:2], **by_name)
def test_whole_texts_of_siblings(rule):
    """The rounds after the first are drafted and ruled anew: caches, cut and noise as well."""
    for drawn in Drawn.IID, Drawn.DISTINCT:
        more = {"one_round": False, "tokens": 3, "schedule": Constant(2)}
        assert proof(rule, FORK, drawn, PLAIN, **more).exact
        assert proof(rule, FORK, drawn, PLAIN, eos=frozenset({1}), target_limit=4, **more).exact


@pytest.mark.parametrize("rule", RULES[:2], **by_name)
@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((0, 1, 2, 0), (-1, -1, 0, 1)), ((0, 0, 1, 2), (-1, -1, 0, 1)), ((2, 1, 0), (-1, 0, 0))],
    ids=str,
)
def test_trees_by_rule(rule, tokens, parents):
    assert proof(rule, parents, tokens, WIDE).exact


def test_by_rule_all_keep_as_much_as_one_sample_match():
    """A deterministic token has no probs to gain from: the target's mass of the paths is kept."""
    tokens, parents = (0, 1, 2, 0), (-1, -1, 0, 1)
    kept = [proof(r, parents, tokens, WIDE).emitted for r in (Match(), Recursive(), Traversal())]
    assert kept == pytest.approx([kept[0]] * 3, abs=1e-12)


def test_from_the_leaves_up_keeps_no_less_than_from_the_root_down():
    distinct = Drawn.DISTINCT
    up, down = (proof(rule, FORK, distinct, PLAIN).emitted for rule in (Traversal(), Recursive()))
    assert up > down + 1e-3
