"""Generated news: repeatable, disjoint, and summaries that their articles support."""

import re
from itertools import islice

from spsbench.tasks.corpora import news


def test_same_seed_same_items():
    first = list(islice(news.items(3, "heldout"), 20))
    assert first == list(islice(news.items(3, "heldout"), 20))
    assert first != list(islice(news.items(4, "heldout"), 20))


def test_splits_share_no_facts():
    train = list(islice(news.items(0, "train"), 3000))
    heldout = list(islice(news.items(0, "heldout"), 400))
    assert not {item.id for item in train} & {item.id for item in heldout}
    assert not {item.document for item in train} & {item.document for item in heldout}
    assert len({item.document for item in heldout}) == 400


def test_summary_tells_nothing_the_article_does_not():
    for item in islice(news.items(1, "heldout"), 300):
        assert "{" not in item.document + item.summary
        assert 3 <= item.document.count(". ") + item.document.count('." ') <= 8
        assert re.fullmatch(r"[^.]+\.", item.summary)
        facts = set(re.findall(r"\d+|\b[A-Z][a-z]+ (?=[A-Z])", item.summary[1:]))
        assert all(fact.strip() in item.document for fact in facts)


def test_layout():
    one, two = islice(news.items(0, "heldout"), 2)
    assert news.layout([one]) == f"Article: {one.document}\nSummary: {one.summary}"
    prompt = news.layout([one], two.document)
    assert prompt == f"{news.layout([one])}\n\nArticle: {two.document}\nSummary:"
