"""The vectorised rules against scalar ones fed the same uniforms, and the unit interval's ends.

The rules are proved in `tests/test_exactness.py`; here each single verdict is compared.
"""

import pytest
import torch

from spsbench.loop.types import Draft, Drawn, Purpose
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.chain_rules import Rejection
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.spectr import SpecTr
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.traversal import Traversal
from spsbench.methods.verifiers.tree_rejection import Recursive


class Fixed:
    """Noise that returns what it was given."""

    def __init__(self, accept: float, final: float = 0.5) -> None:
        self.values = {Purpose.ACCEPT: accept, Purpose.FINAL: final, Purpose.PLAIN: final}

    def uniform(self, purpose, n):
        return torch.full((n,), self.values[purpose], dtype=torch.float64)


def path(verdict):
    kept = [node for node in verdict.path.tolist() if node >= 0]
    assert verdict.path.tolist() == kept + [-1] * (len(verdict.path) - len(kept))
    return kept


@pytest.mark.parametrize("rule", [Sps(), Rejection(), Block(), Traversal()], ids=str)
@pytest.mark.parametrize("final", [0.0, 1 - 2**-53])
def test_a_token_that_the_target_rules_out_is_never_kept(rule, final):
    """Even at u = 0, and the token in its place has a probability."""
    q = torch.tensor([[0.0, 0.6, 0.4, 0.0]] * 3)
    p = torch.tensor([[0.9, 0.05, 0.0, 0.05]] * 2)
    verdict = rule(Draft(torch.tensor([0, 0]), p), q, Fixed(0.0, final))
    assert path(verdict) == []
    assert int(verdict.token) in (1, 2)


@pytest.mark.parametrize("rule", [Sps(), Rejection(), Block()], ids=str)
def test_a_draft_from_the_target_s_own_distribution_is_kept_whole(rule):
    q = torch.tensor([[0.25, 0.5, 0.25]] * 3)
    verdict = rule(Draft(torch.tensor([2, 1]), q[:2]), q, Fixed(1 - 2**-53))
    assert path(verdict) == [0, 1]
    assert int(verdict.tested) == (-1 if rule == Block() else 2)  # block tests no single token


def test_what_each_rule_refuses():
    for rule in Sps(), Rejection(), Block():
        assert rule.refuses(Drawn.IID, False) is None
        assert "use verifier traversal" in rule.refuses(Drawn.IID, True)
        assert "use verifier match" in rule.refuses(Drawn.POINT, True)
        assert "deterministically" in rule.refuses(Drawn.POINT, False)
        assert "without replacement" in rule.refuses(Drawn.DISTINCT, False)
    for rule in Match(), Traversal(), Recursive():
        assert {rule.refuses(drawn, tree) for drawn in Drawn for tree in (False, True)} == {None}
    for rule in [SpecTr()]:
        assert rule.refuses(Drawn.IID, True) is rule.refuses(Drawn.IID, False) is None
        assert "use verifier match" in rule.refuses(Drawn.POINT, True)
        assert "use verifier traversal" in rule.refuses(Drawn.DISTINCT, True)


def test_a_tree_without_nodes_is_a_plain_step():
    empty = torch.empty(0, dtype=torch.int64)
    for rule in Match(), Traversal(), Recursive(), SpecTr():
        verdict = rule(Draft(empty, None, empty), torch.tensor([[0.0, 1.0]]), Fixed(0.5))
        assert (verdict.path.tolist(), int(verdict.token)) == ([], 1)
        assert verdict.path.dtype == torch.int64
