"""`--fit disco:out=FILE` on traces in files."""

from pathlib import Path

import numpy as np
import pytest

from spsbench.errors import UsageError
from spsbench.metrics.classifier import Classifier, read_classifier
from spsbench.planning.plan import fit_schedule
from spsbench.spec import Spec
from spsbench.store.traces import DraftOf, Drawn, Head, Proposed, TraceWriter, Written

TRUE = Classifier(0.2, -0.8, 1.5)
LENGTH = 300


def drawn(seed):
    dice = np.random.default_rng(seed)
    entropy, peak = dice.uniform(0, 3, LENGTH), dice.uniform(0.1, 1, LENGTH)
    kept = TRUE.chances(entropy, peak)
    kept[250:] = 0.0  # beyond the draft's context nothing is drafted
    columns = {"entropy": entropy, "peak": peak, "overlap": kept}
    return Drawn(p=kept, agrees=kept > 0.5, reach=250, **columns)


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "traces-cell-00-of-01.jsonl"
    with TraceWriter(file, Head({"target": "made up"})) as writer:
        for name, sampled in (("a", True), ("b", True), ("ngram", False)):
            writer.declare(DraftOf(name=name, sampled=sampled, most=0 if sampled else 4))
        for number in range(3):
            key = ("cell", str(number), 0)
            q = np.full(LENGTH, 0.5)
            sizes = {"prompt_tokens": 4, "budget": LENGTH, "finish": "length"}
            writer.add_text(Written(key=key, q=q, entropy=q, **sizes))
            for name in ("a", "b"):
                writer.add(key, name, drawn(number))
            looked = np.zeros(LENGTH, np.uint8)
            writer.add(key, "ngram", Proposed(proposed=looked, hits=looked))
    return file


def test_it_finds_what_made_the_trace(trace, tmp_path):
    out = tmp_path / "disco.json"
    found = fit_schedule(Spec.parse(f"disco:out={out},draft=a"), [trace])
    made = read_classifier(out)
    assert found.classifier == made
    assert found.positions == 750
    expected = TRUE.bias, TRUE.entropy, TRUE.peak
    assert (made.bias, made.entropy, made.peak) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "spec",
    [
        *("disco:out=FILE", "disco:out=FILE,draft=ngram", "disco:draft=a"),
        *("ema:out=FILE", "disco:out=FILE,t=0.3"),
    ],
)
def test_what_cannot_be_fitted(spec, trace):
    with pytest.raises(UsageError):
        fit_schedule(Spec.parse(spec), [trace])
    assert not Path("FILE").exists()
