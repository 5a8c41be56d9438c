"""Scores -> values by sample: what quality figures and the parity of two arms stand on."""

from collections.abc import Callable, Iterable, Sequence

from spsbench.settings.records import Score

Combine = Callable[[Sequence[Sequence[dict[str, float]]]], dict[str, list[float]]]
"""Scores by sample and repeat -> for each figure one value a sample, as `Task.combine` does."""

PERCENT = ("rouge2", "rouge2_stemmed")
"""Metrics that are scored in 0 .. 100; parity and the paper are on the scale 0 .. 1."""


def greatest(metric: str) -> float | None:
    """The greatest value that a metric can have; None: it is not known."""
    if metric in PERCENT:
        return 100.0
    return 1.0 if metric.startswith("pass@") else None


Qualities = dict[str, dict[str, float]]
"""Figure -> sample -> value."""


def average(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
    """The mean over repeats of every metric: the combination of a task that says nothing else."""
    names = list(dict.fromkeys(name for repeats in scores for one in repeats for name in one))
    return {
        name: [sum(one[name] for one in repeats) / len(repeats) for repeats in scores]
        for name in names
    }


def qualities(scores: Iterable[Score], combine: Combine = average) -> Qualities:
    """The values of one cell's scores; the order of scores does not matter.

    Raises:
        KeyError: a metric is missing from one of the scores.
        ValueError: `combine` returned other than one value a sample.
    """
    repeats: dict[str, dict[int, dict[str, float]]] = {}
    for score in scores:
        repeats.setdefault(score.sample, {})[score.repeat] = score.metrics
    samples = sorted(repeats)
    ordered = [[repeats[sample][i] for i in sorted(repeats[sample])] for sample in samples]
    combined = combine(ordered) if ordered else {}
    return {name: dict(zip(samples, v, strict=True)) for name, v in combined.items()}
