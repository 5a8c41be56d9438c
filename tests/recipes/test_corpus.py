"""Texts of the bundled pair's recipe: repeatable, split by what they say, pinned by hash."""

import doctest
import sys
from itertools import islice

import pytest
import torch

from nano import functions, news, stdlib
from nano.corpus import Stream, encode, news_texts, train_tokenizer
from spsbench.tasks import articles

STREAM = Stream(torch.arange(1000), seed=5)


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
    found = list(stdlib.modules())
    assert stdlib.digest(found) == stdlib.DIGEST
    assert {module.path for module in found if module.split == "heldout"} == stdlib.HELDOUT


def test_modules_leave_out_tests_tables_and_installed_packages(tmp_path):
    skipped = ("test/test_abc.py", "site-packages/x.py", "encodings/cp037.py", "_sysconfigdata_.py")
    for name in ("heapq.py", "abc.py", "empty.py", *skipped):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("" if name == "empty.py" else "x = 1\n")
    found = {module.path: module.split for module in stdlib.modules(tmp_path)}
    assert found == {"abc.py": "train", "heapq.py": "heldout"}


def test_an_epoch_of_batches_visits_every_window_once():
    rows = torch.cat([STREAM.batch(index, 4, 16) for index in range(15)])  # 61 windows
    assert len(rows[:, 0].unique()) == len(rows) == 60
    assert torch.equal(rows, rows[:, :1] + torch.arange(17))
    assert torch.equal(STREAM.batch(7, 4, 16), rows[28:32])
    assert not torch.equal(STREAM.batch(0, 4, 16), STREAM.batch(15, 4, 16))
    with pytest.raises(ValueError):
        STREAM.batch(0, 100, 16)


def test_the_tokenizer_loses_nothing_and_ends_each_document():
    texts = news_texts("train", 5)
    words = train_tokenizer(texts, 300, 64)
    ids = encode(words, texts)
    assert int((ids == words.eos_token_id).sum()) == len(texts)
    assert words.decode(ids) == "".join(text + words.eos_token for text in texts)
    with pytest.raises(ValueError):
        train_tokenizer(texts, 99_999, 64)
