"""`--fit disco:out=FILE` on traces in files, and the classifier that it writes."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.methods.schedules.by_distribution import Disco
from spsbench.metrics.classifier import Classifier, fit, read_classifier, write_classifier
from spsbench.planning.fit import fit_schedule, slots_of
from spsbench.settings.method import Drafting
from spsbench.spec import Spec
from spsbench.store.traces import DraftOf, Proposed, SampledDraft, TraceSource, TraceWriter, Written

TRUE = Classifier(0.2, -0.8, 1.5)
LENGTH = 300


def drawn(seed):
    dice = np.random.default_rng(seed)
    entropy, peak = dice.uniform(0, 3, LENGTH), dice.uniform(0.1, 1, LENGTH)
    kept = TRUE.chances(entropy, peak)
    kept[250:] = 0.0  # beyond the draft's context nothing is drafted
    columns = {"entropy": entropy, "peak": peak, "overlap": kept}
    return SampledDraft(p=kept, agrees=kept > 0.5, reach=250, **columns)


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "traces-cell-00-of-01.jsonl"
    with TraceWriter(file, TraceSource({"target": "made up"})) as writer:
        for name, sampled in (("a", True), ("b", True), ("ngram", False)):
            writer.declare(
                DraftOf(name=Drafting.parse(name), sampled=sampled, most=0 if sampled else 4)
            )
        for number in range(3):
            key = ("cell", str(number), 0)
            q = np.full(LENGTH, 0.5)
            sizes = {"prompt_tokens": 4, "budget": LENGTH, "finish": "length"}
            writer.add_text(Written(key=key, q=q, entropy=q, **sizes))
            for name in ("a", "b"):
                writer.add(key, Drafting.parse(name), drawn(number))
            looked = np.zeros(LENGTH, np.uint8)
            writer.add(key, Drafting.parse("ngram"), Proposed(proposed=looked, hits=looked))
    return file


def test_it_finds_what_made_the_trace(trace, tmp_path):
    out = tmp_path / "disco.json"
    found = fit_schedule(Spec.parse(f"disco:out={out},draft=a"), [trace])
    made = read_classifier(out)
    assert found.classifier == made
    assert found.positions == 750
    expected = TRUE.bias, TRUE.entropy, TRUE.peak
    assert (made.bias, made.entropy, made.peak) == pytest.approx(expected, abs=1e-3)
    assert found.loss < found.plain
    disco, p = Disco(path=str(out), t=0.3), torch.tensor([0.7, 0.3])
    disco.k([])
    entropy = float(torch.special.entr(p).sum())
    assert bool(disco.go_on(p)) == bool(made.chances(np.array([entropy]), np.array([0.7])) > 0.3)


def one_slot(positions):
    return np.arange(positions), np.zeros(positions, np.int64), np.ones(positions)


def test_what_cannot_be_fitted_read_or_written_is_refused(tmp_path):
    columns = np.full((3, 200), 0.5)
    for wrong in (columns[:, :99], columns * [[np.nan], [1], [1]], columns * [[1], [1], [4]]):
        with pytest.raises(UsageError):
            fit(*wrong, one_slot(wrong.shape[1]))
    for text in ("", "[]", "{}", '{"kind": "spsbench costs"}'):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(DataError):
            read_classifier(tmp_path / "c.json")
    with pytest.raises(MissingError):
        write_classifier(tmp_path / "none" / "c.json", fit(*columns, one_slot(200)))


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


def test_slots_of_a_trace_come_with_their_chances():
    kept = [Fraction(1, 2), Fraction(3, 4), Fraction(1, 3)]
    begins = [Fraction(1), 1 - kept[0]]  # slot 0 rejected
    begins.append(kept[0] * (1 - kept[1]) + begins[1] * (1 - kept[1]))
    expected = {
        (0, 0): begins[0],
        (1, 1): begins[0] * kept[0],
        (2, 2): begins[0] * kept[0] * kept[1],
        (1, 0): begins[1],
        (2, 1): begins[1] * kept[1],
        (2, 0): begins[2],
    }
    positions, slots, weights = slots_of([np.array([*map(float, kept)])] * 2)
    found = dict(zip(zip(positions.tolist(), slots.tolist(), strict=True), weights, strict=True))
    both = {(at + n, slot): float(p) for (at, slot), p in expected.items() for n in (0, 3)}
    assert found == pytest.approx(both)


def test_a_fit_finds_that_late_slots_stand_in_easy_text():
    easy = np.tile(np.repeat([0.95, 0.3], 10), 20)  # stretches that the features do not tell
    values = fit(np.ones(400), np.ones(400), easy, slots_of([easy])).classifier
    assert values.slot > 0.1
    even = np.full(400, 0.6)
    alike = fit(np.ones(400), np.ones(400), even, slots_of([even])).classifier
    assert alike.slot == pytest.approx(0, abs=1e-6)
