"""ROUGE-2 against an independent count of bigrams."""

import random
import re
import socket
from collections import Counter
from itertools import pairwise, product

import pytest
from nltk.stem import PorterStemmer

from spsbench.tasks import rouge

WORDS = (
    *("the", "The", "cats", "cat", "sat", "sitting", "on", "mats,", "mat."),
    *("3", "café", "running", "run", "-", "naïve"),
)


def rouge2(prediction, reference, stem):
    """ROUGE-2 F as Lin 2004 defines it, on runs of [a-z0-9]."""
    stemmer = PorterStemmer()

    def bigrams(text):
        words = re.findall("[a-z0-9]+", text.lower())
        if stem:
            words = [stemmer.stem(word) if len(word) > 3 else word for word in words]
        return Counter(pairwise(words))

    predicted, wanted = bigrams(prediction), bigrams(reference)
    common = sum((predicted & wanted).values())
    if not common:
        return 0.0
    precision, recall = common / predicted.total(), common / wanted.total()
    return 100 * 2 * precision * recall / (precision + recall)


def test_against_an_independent_count():
    draw = random.Random(0)
    seen = set()
    for _ in range(100):
        prediction, reference = (
            " ".join(draw.choices(WORDS, k=draw.randint(0, 12))) for _ in range(2)
        )
        got = rouge.evaluate_rouge(prediction, reference)
        assert got["rouge2"] == pytest.approx(rouge2(prediction, reference, stem=False))
        assert got["rouge2_stemmed"] == pytest.approx(rouge2(prediction, reference, stem=True))
        seen.add(got["rouge2"] == got["rouge2_stemmed"])
    assert seen == {True, False}  # stemming made a difference


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [*product(("", " \n", "...", "猫"), ("the cat sat", "")), ("a", "a")],
)
def test_nothing_to_compare_is_zero_and_counted(prediction, reference):
    got = rouge.evaluate_rouge(prediction, reference)
    assert got == {"rouge2": 0, "rouge2_stemmed": 0, "empty": float(prediction != "a")}


PAIRS = [("the cat sat on mats", "A cat sat on the mat."), ("", "the dog"), ("a b c", "a b c")]


def test_the_metric_is_the_function_and_asks_no_network(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", None)
    import evaluate

    predictions, references = ([pair[n] for pair in PAIRS] for n in (0, 1))
    metric = rouge.rouge2_metric()
    assert isinstance(metric, evaluate.Metric)
    got = metric.compute(predictions=predictions, references=references)
    scores = [rouge.rouge_scores(*pair) for pair in PAIRS]
    assert got == pytest.approx({n: sum(s[n] for s in scores) / 3 for n in rouge.METRICS})
    assert got["empty"] == pytest.approx(1 / 3)

    for prediction, reference in PAIRS:
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == pytest.approx(got)
