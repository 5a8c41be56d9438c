"""The `evaluate` metric: the same numbers, combined with others, and nothing fetched."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spsbench.settings.task import Sample
from spsbench.tasks import rouge
from spsbench.tasks import rouge as module
from spsbench.tasks.jsonl import Jsonl
from spsbench.tasks.rouge import rouge2_metric, score
from spsbench.tasks.xsum import XSum

PAIRS = [("the cat sat on mats", "A cat sat on the mat."), ("", "the dog"), ("a b c", "a b c")]


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*given):
        pytest.fail(f"a connection was opened: {given}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_the_metric_is_the_function():
    import datasets
    import evaluate

    predictions, references = ([pair[n] for pair in PAIRS] for n in (0, 1))
    metric = rouge2_metric()
    assert isinstance(metric, evaluate.Metric)
    got = metric.compute(predictions=predictions, references=references)
    assert got == pytest.approx(rouge.mean_scores(PAIRS))
    assert got["empty"] == pytest.approx(1 / 3)

    for prediction, reference in PAIRS:
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == pytest.approx(got)

    class Length(evaluate.Metric):
        def _info(self) -> Any:
            text = datasets.Value("string")
            features = datasets.Features({"predictions": text, "references": text})
            return evaluate.MetricInfo("", "", features)

        def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            return {"characters": float(sum(map(len, predictions)))}

    both = evaluate.combine([rouge2_metric(), Length(keep_in_memory=True)])
    combined = both.compute(predictions=predictions, references=references)
    assert combined == pytest.approx({**got, "characters": 24})


HARD = [
    *PAIRS,
    ("", ""),
    ("a\0b the cat", "the cat"),
    ("\ufffd\u2028 the cat", "the cat"),
    ("é" * 9, "é"),
]


@pytest.mark.usefixtures("no_network")
def test_one_text_is_scored_as_the_function_does():
    assert [score(*pair) for pair in HARD] == [rouge.rouge_scores(*pair) for pair in HARD]


def test_tasks_score_by_the_metric(tmp_path, monkeypatch):
    seen = []
    kind = module._metric_class()
    compute = kind._compute

    def told(self, predictions, references):
        seen.append((list(predictions), list(references)))
        return compute(self, predictions, references)

    monkeypatch.setattr(kind, "_compute", told)
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "x", "reference": "the cat"}\n')
    for task in (XSum(data="mini", count=1), Jsonl(path=str(tmp_path / "p.jsonl"))):
        assert task.score(Sample("a", "x", "the cat"), "the cat")["rouge2"] == pytest.approx(100)
    assert seen == [(["the cat"], ["the cat"])] * 2


def test_nothing_is_written_to_the_users_cache(monkeypatch):
    """In a home that nobody can write; and two at once do not meet."""
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", "/proc/nowhere/metrics")
    one, other = rouge2_metric(), rouge2_metric()
    assert not Path(one.data_dir).exists()
    for prediction, reference in PAIRS:
        one.add(prediction=prediction, reference=reference)
        other.add(prediction="the dog ran", reference="the dog ran")
    assert one.compute() == pytest.approx(rouge.mean_scores(PAIRS))
    assert other.compute()["rouge2"] == pytest.approx(100)


def test_an_interrupt_leaves_no_text_behind(monkeypatch):
    def interrupted(self, **texts):
        raise KeyboardInterrupt

    score("the cat sat", "the cat sat")
    with monkeypatch.context() as patch:
        patch.setattr("evaluate.EvaluationModule._finalize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            score("one two three", "four five six")
    assert score("the cat sat", "the cat sat")["rouge2"] == pytest.approx(100)


@pytest.mark.slow
def test_two_processes_without_a_home():
    program = (
        "from spsbench.tasks.rouge import score\n"
        "print([score('the cat sat', 'the cat')['rouge2'] for _ in range(50)][-1])"
    )
    home = dict.fromkeys(("HOME", "HF_HOME", "XDG_CACHE_HOME"), "/proc/nowhere")
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            env=os.environ | home,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    expected = f"{rouge.rouge_scores('the cat sat', 'the cat')['rouge2']}\n"
    assert [process.communicate()[0] for process in both] == [expected] * 2
