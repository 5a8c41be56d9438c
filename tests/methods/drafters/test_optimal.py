"""The best tree of a size, against every tree there is."""

import json

import pytest

from spsbench.audit.exact.tables import Pair, TableLM
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.drafters.sequoia import (
    Measured,
    Sequoia,
    Table,
    best_shape,
    chances,
    read,
)

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
    chance = Measured(ACCEPT).chances.tolist()
    assert chance == pytest.approx([0.5, 0.5 * 0.4, 0.5 * 0.6 * 0.6])
    table = Table(nodes, depth, Measured(ACCEPT).chances)
    most = max(tokens(forest, chance) for n in range(nodes + 1) for forest in forests(n, 3, depth))
    assert table.tokens(nodes, depth) == pytest.approx(1 + most)
    shape = best_shape(nodes, depth, Measured(ACCEPT))
    kept, deep, ranks = [], [], {}
    for parent in shape:
        rank = ranks[parent] = ranks.get(parent, -1) + 1
        kept.append(chance[rank] * (kept[parent] if parent >= 0 else 1))
        deep.append(1 + (deep[parent] if parent >= 0 else 0))
    assert sum(kept) == pytest.approx(most)
    assert len(shape) <= nodes
    assert max(deep) <= depth
    assert deep == sorted(deep)  # level by level


def test_with_times_a_dear_row_makes_the_tree_small_and_a_dear_pass_makes_it_flat():
    cheap = Measured((0.6, 0.3), 0.1, ((1, 10.0), (65, 10.1)))
    assert len(best_shape(32, 8, cheap)) == 32
    rows = Measured((0.6, 0.3), 0.1, ((1, 10.0), (65, 650.0)))
    assert len(best_shape(32, 8, rows)) < 5
    passes = Measured((0.6, 0.3), 100.0, ((1, 10.0), (65, 10.1)))
    assert set(best_shape(32, 8, passes)) == {-1}


def test_what_was_measured_is_read_or_told(tmp_path):
    file = tmp_path / "costs.json"
    said = {"accept": [0.6, 0.2], "draft": 1.5, "target": {"9": 12, "1": 10.0}}
    file.write_text(json.dumps(said))
    assert read(str(file)) == Measured((0.6, 0.2), 1.5, ((1, 10.0), (9, 12.0)))
    lm = TableLM(Pair(3, 1).p, 3)
    assert Sequoia(4, 2, file=str(file)).over(Frontier(lm)).shape
    for wrong in ({**said, "target": {}}, {"accept": [2]}, [], {**said, "draft": -1}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError):
            read(str(file))
    with pytest.raises(ValueError):
        read(str(tmp_path / "none.json"))
    for wrong in "", "a/b", "1.5":
        with pytest.raises(ValueError):
            chances(wrong)
