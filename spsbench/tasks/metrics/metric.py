"""ROUGE-2 as a metric of the `evaluate` library, for use in other people's evaluations.

`evaluate.load("rouge")` runs code downloaded from a hub, or a folder `rouge` that happens to be in
the working directory. This class is here, and needs neither. Importing `evaluate` takes about ten
seconds, hence inside the function; the benchmarks call `rouge.score` themselves.
"""

import functools
from typing import Any

from spsbench.tasks.metrics import rouge


def rouge2_metric() -> Any:
    """A new `evaluate.Metric` of predictions and references, both lists of str.

    `compute` gives the means of `rouge.score`: `rouge2` and `rouge2_stemmed` in 0..100, and
    `empty`, a share. `evaluate.combine([rouge2_metric(), ...])` takes it as it is.
    """
    return _metric_class()(keep_in_memory=True)


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
