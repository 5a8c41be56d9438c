"""ROUGE-2 F as `rouge_score` computes it (Lin 2004): bigrams of lower-case [a-z0-9] words.

Stemming moves the figure by points and papers rarely say which they used, so both are given,
times 100. `rouge_score` takes a second to import, hence inside the functions.
"""

import functools
import re
from collections.abc import Iterable
from statistics import fmean
from typing import Any

METRICS = ("rouge2", "rouge2_stemmed", "empty")


def score(prediction: str, reference: str) -> dict[str, float]:
    """ROUGE-2 F in 0..100, without and with Porter stemming; `empty` is 1 if nothing was said.

    A text of fewer than two words has no bigram: 0, and not an error.
    """
    return {
        "rouge2": _f(prediction, reference, stem=False),
        "rouge2_stemmed": _f(prediction, reference, stem=True),
        "empty": float(not has_words(prediction)),
    }


def has_words(text: str) -> bool:
    """Does ROUGE see a word in `text`? In a script without Latin letters it sees none."""
    return re.search("[a-z0-9]", text.lower()) is not None


def mean(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The mean score of (prediction, reference) pairs; `empty` is the share of empty predictions.

    Raises:
        ValueError: no pairs.
    """
    scores = [score(prediction, reference) for prediction, reference in pairs]
    if not scores:
        raise ValueError("ROUGE of no pairs: expected at least one")
    return {name: fmean(given[name] for given in scores) for name in METRICS}


def _f(prediction: str, reference: str, *, stem: bool) -> float:
    return 100 * float(_scorer(stem).score(reference, prediction)["rouge2"].fmeasure)


@functools.cache
def _scorer(stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge2"], use_stemmer=stem)
