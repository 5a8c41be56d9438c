"""Trees of drafts: who sees whom, how deep, and which path is followed."""

import random

import pytest
import torch

from spsbench.loop.tree import additive_mask, node_positions, tree_of


def ancestors(node, parents):
    return set() if node < 0 else {node} | ancestors(parents[node], parents)


def test_a_node_sees_itself_and_its_ancestors():
    rng = random.Random(0)
    for _ in range(50):
        parents = [rng.randrange(-1, node) for node in range(rng.randrange(8))]
        tree = tree_of(parents)
        above = [ancestors(node, parents) for node in range(len(parents))]
        assert [set(row.nonzero()[:, 0].tolist()) for row in tree.visible] == above
        assert tree.ancestors.tolist() == [len(nodes) - 1 for nodes in above]
        assert tree.depth == (0, *(len(nodes) for nodes in above))


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1], [-1, 2, 0]])
def test_parents_come_before_their_children(parents):
    with pytest.raises(ValueError):
        tree_of(torch.tensor(parents))


def test_the_mask_is_causal_up_to_the_nodes():
    mask = additive_mask(torch.tensor([-1, 0, 0]), 5, 2, torch.float32)
    lowest = torch.finfo(torch.float32).min
    assert mask.shape == (1, 1, 5, 7)
    assert (mask[0, 0] == 0).int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 0, 1],
    ]
    assert set(mask.unique().tolist()) == {0.0, lowest}


@pytest.mark.parametrize("cached", [0, 3, 11])
def test_positions_go_by_the_depth_of_nodes_however_deep(cached):
    """Chains, stars and mixtures of both, eight deep; fed at once or after a part of the tree."""
    deepest = 0
    for seed in range(30):
        by = random.Random(seed)
        parents = [max(-1, node - 1 - by.choice([0, 0, 0, 0, 0, 1, 2])) for node in range(12)]
        deep = [len(ancestors(node, parents)) for node in range(12)]
        deepest = max(deepest, *deep)
        assert (tree_of(parents).ancestors + 1).tolist() == deep
        for fed in (14, 12, 4):  # with two tokens before the nodes, the nodes, the last four
            first = cached + fed - 12  # where the context ends
            expected = [*range(cached, first), *(first + level - 1 for level in deep)][-fed:]
            if first >= 0:
                assert node_positions(torch.tensor(parents), fed, cached).tolist() == expected
    assert deepest > 8
