"""ROUGE-2 as a metric of the `evaluate` library: what tasks score by, and other people may use.

`evaluate.load("rouge")` runs code downloaded from a hub, or a folder `rouge` that happens to be in
the working directory. This class is here, and needs neither.

A metric keeps its texts in files under the user's cache by default, which two processes share and a
read-only home has no room for. This one keeps them in memory; the folder that the library makes for
every metric is a temporary one, gone as soon as the metric is made. Importing `evaluate` takes
seconds of processor time, hence inside the function: a report, which reads the scores that a run
has kept, never does.
"""

import functools
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from spsbench.tasks.metrics import rouge


def score(prediction: str, reference: str) -> dict[str, float]:
    """`rouge.score` of one text, computed by the metric."""
    try:
        found: dict[str, float] = _own().compute(predictions=[prediction], references=[reference])
    except BaseException:  # also an interrupt: the text is still in the metric, for the next mean
        _own.cache_clear()
        raise
    return found


def rouge2_metric() -> Any:
    """A new `evaluate.Metric` of predictions and references, both lists of str.

    `compute` gives the means of `rouge.score`: `rouge2` and `rouge2_stemmed` in 0..100, and
    `empty`, a share. `evaluate.combine([rouge2_metric(), ...])` takes it as it is.
    """
    with TemporaryDirectory(prefix="sps-") as folder:
        return _metric_class()(keep_in_memory=True, cache_dir=folder, experiment_id=uuid4().hex)


@functools.cache
def _own() -> Any:
    return rouge2_metric()


@functools.cache
def _metric_class() -> Any:
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
            return rouge.mean(zip(predictions, references, strict=True))

    return Rouge2
