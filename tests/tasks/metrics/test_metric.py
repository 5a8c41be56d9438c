"""The `evaluate` metric: the same numbers, combined with others, and nothing fetched."""

import socket
from typing import Any

import pytest

from spsbench.tasks.metrics import rouge
from spsbench.tasks.metrics.metric import rouge2_metric

PAIRS = [("the cat sat on mats", "A cat sat on the mat."), ("", "the dog"), ("a b c", "a b c")]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        pytest.fail(f"a connection was opened: {given}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("no_network")
def test_the_metric_is_the_function() -> None:
    import datasets
    import evaluate

    predictions, references = ([pair[n] for pair in PAIRS] for n in (0, 1))
    metric = rouge2_metric()
    assert isinstance(metric, evaluate.Metric)
    got = metric.compute(predictions=predictions, references=references)
    assert got == pytest.approx(rouge.mean(PAIRS))
    assert got["empty"] == pytest.approx(1 / 3)

    for prediction, reference in PAIRS:
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == pytest.approx(got)

    class Length(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            text = datasets.Value("string")
            features = datasets.Features({"predictions": text, "references": text})
            return evaluate.MetricInfo("", "", features)

        def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            return {"characters": float(sum(map(len, predictions)))}

    both = evaluate.combine([rouge2_metric(), Length(keep_in_memory=True)])
    combined = both.compute(predictions=predictions, references=references)
    assert combined == pytest.approx({**got, "characters": 24})
