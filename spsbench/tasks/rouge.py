"""ROUGE-2 F as `rouge_score` computes it (Lin 2004): bigrams of lower-case [a-z0-9] words.

Stemming moves the score by points and papers rarely name their choice, so both scores are given,
times 100. `rouge_score` takes a second to import, hence inside the functions.
"""

import functools
import re
from statistics import fmean
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from spsbench.settings.task import Metric

METRICS = ("rouge2", "rouge2_stemmed", "empty")
QUALITY = MappingProxyType({"rouge2": Metric(100, margin=0.003), "rouge2_stemmed": Metric(100)})
"""Metrics; the margin is about three standard errors of XSum's 11,305 documents."""


def rouge_scores(prediction: str, reference: str) -> dict[str, float]:
    """Return ROUGE-2 F in 0..100, as `rouge2` and, with Porter stemming, `rouge2_stemmed`; `empty`.

    `empty` is 1 if the prediction has no words, else 0. A text of fewer than two words has no
    bigram and scores 0, which is no error.
    """
    values = (_scorer(stem).score(reference, prediction)["rouge2"] for stem in (False, True))
    fs = [100 * float(value.fmeasure) for value in values]
    return dict(zip(METRICS, [*fs, float(not has_words(prediction))], strict=True))


def has_words(text: str) -> bool:
    """Return whether ROUGE finds a word in `text`; non-Latin scripts have none."""
    return re.search("[a-z0-9]", text.lower()) is not None


@functools.cache
def _scorer(stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge2"], use_stemmer=stem)


def evaluate_rouge(prediction: str, reference: str) -> dict[str, float]:
    """Return `rouge_scores` (0..100) of a text by a cached `rouge2_metric`, dropped on failure."""
    try:
        scores: dict[str, float] = _rouge().compute(
            predictions=[prediction], references=[reference]
        )
    except BaseException:  # interrupts too: the text would stay in the metric for the next mean
        _rouge.cache_clear()
        raise
    return scores


def rouge2_metric() -> Any:
    """Return a new `evaluate.Metric` of predictions and references, both lists of str.

    `compute` returns the means of `rouge_scores`: `rouge2` and `rouge2_stemmed` in 0..100, and
    `empty`, a share. `evaluate.combine([rouge2_metric(), ...])` accepts the metric.
    """
    with TemporaryDirectory(prefix="sps-") as folder:
        return _metric_class()(keep_in_memory=True, cache_dir=folder, experiment_id=uuid4().hex)


_rouge = functools.cache(rouge2_metric)


@functools.cache
def _metric_class() -> Any:
    """Return ROUGE-2 as a class of `evaluate`, a slow import; ImportError: it is not installed."""
    import datasets
    import evaluate

    text = datasets.Value("string")

    class Rouge2(evaluate.Metric):  # type: ignore[misc]
        """Mean ROUGE-2 F."""

        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description="ROUGE-2 F x 100, the mean over pairs, without and with stemming",
                citation="Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries",
                inputs_description="predictions and references: lists of str",
                features=datasets.Features({"predictions": text, "references": text}),
            )

        def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            scores = list(map(rouge_scores, predictions, references))
            return {name: fmean(values[name] for values in scores) for name in METRICS}

    return Rouge2
