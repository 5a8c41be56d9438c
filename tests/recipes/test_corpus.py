"""Texts of the bundled pair's recipe: repeatable, split by what they say, pinned by hash."""

import doctest
import sys
from itertools import islice

import pytest

from nano import functions, news, stdlib
from spsbench.tasks import articles


@pytest.mark.parametrize("items", [news.items, functions.items], ids=["news", "functions"])
def test_items_repeat_with_the_seed_and_share_nothing_between_splits(items):
    first = list(islice(items(3, "train"), 20))
    assert first == list(islice(items(3, "train"), 20))
    assert first != list(islice(items(4, "train"), 20))
    train, heldout = (
        {item.id for item in islice(items(0, split), 300)} for split in ("train", "heldout")
    )
    assert not train & heldout


def test_examples_of_functions_hold():
    parser, tried = doctest.DocTestParser(), 0
    for item in islice(functions.items(1, "heldout"), 200):
        space = {}
        exec(compile(item.prompt + item.body, item.id, "exec"), space)
        for example in parser.get_examples(space[item.name].__doc__):
            # Values, not texts: sets have no order, and the shell does not show None.
            assert eval(example.source, space) == eval(example.want)
            tried += 1
    assert tried >= 200


def test_the_articles_that_ship_are_those_of_the_generator():
    shipped = articles.articles("mini", articles.MAX_MINI_ARTICLES)
    assert [shipped.example, *shipped.items] == news.mini(articles.MAX_MINI_ARTICLES)


@pytest.mark.slow
def test_the_library_of_the_pinned_python_has_the_digest():
    if sys.version.split()[0] != stdlib.PYTHON:
        pytest.skip(f"another Python than {stdlib.PYTHON}")
    library = stdlib.load(pinned=True)
    assert {module.path for module in library if module.split == "heldout"} == stdlib.HELDOUT
