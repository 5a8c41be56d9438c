"""The best tree of a size, against every tree there is."""

import pytest

from spsbench.methods.drafters.shaped import best_shape, kept_chances, parse_probabilities

ACCEPT = (0.5, 0.4, 0.6)


def forests(nodes, width, depth):
    """Every ordered list of trees with so many nodes in all, at most `width` beside each other."""
    if nodes == 0:
        yield ()
        return
    if width == 0 or depth == 0:
        return
    for below in range(nodes):
        for children in forests(below, len(ACCEPT), depth - 1):
            for rest in forests(nodes - 1 - below, width - 1, depth):
                yield (children, *rest)


def tokens(forest, chance):
    """Of the children of a kept node: the sum over nodes of the chance that they are kept."""
    return sum(chance[k] * (1 + tokens(below, chance)) for k, below in enumerate(forest))


@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (3, 1), (3, 3), (5, 2), (6, 3), (7, 4)])
def test_no_tree_of_that_size_brings_more(nodes, depth):
    chance = kept_chances(ACCEPT).tolist()
    assert chance == pytest.approx([0.5, 0.5 * 0.4, 0.5 * 0.6 * 0.6])
    most = max(tokens(forest, chance) for n in range(nodes + 1) for forest in forests(n, 3, depth))
    shape = best_shape(nodes, depth, ACCEPT)
    kept, deep, ranks = [], [], {}
    for parent in shape:
        rank = ranks[parent] = ranks.get(parent, -1) + 1
        kept.append(chance[rank] * (kept[parent] if parent >= 0 else 1))
        deep.append(1 + (deep[parent] if parent >= 0 else 0))
    assert sum(kept) == pytest.approx(most)
    assert len(shape) <= nodes
    assert max(deep) <= depth
    assert deep == sorted(deep)  # level by level


@pytest.mark.parametrize("accept", ["", "a/b", "1.5"])
def test_what_is_no_chance_is_refused(accept):
    with pytest.raises(ValueError):
        parse_probabilities(accept)
