"""Generated functions: repeatable, disjoint, valid, and their examples hold."""

import doctest
from itertools import islice

from spsbench.tasks.corpora import functions


def test_same_seed_same_items():
    first = list(islice(functions.items(3, "train"), 20))
    assert first == list(islice(functions.items(3, "train"), 20))
    assert first != list(islice(functions.items(4, "train"), 20))


def test_splits_share_no_specification():
    train = {item.id for item in islice(functions.items(0, "train"), 2000)}
    heldout = {item.id for item in islice(functions.items(0, "heldout"), 200)}
    assert not train & heldout
    assert len(heldout) > 80


def test_examples_hold():
    parser, tried = doctest.DocTestParser(), 0
    for item in islice(functions.items(1, "heldout"), 200):
        space = {}
        exec(compile(item.prompt + item.body, item.id, "exec"), space)
        for example in parser.get_examples(space[item.name].__doc__):
            # Values, not texts: sets have no order, and the shell does not show None.
            assert eval(example.source, space) == eval(example.want)
            tried += 1
    assert tried >= 200
