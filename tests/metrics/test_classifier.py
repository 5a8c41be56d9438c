"""The classifier of a slot's chance to be kept: its fit, its file."""

import json

import numpy as np
import pytest
import torch

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.methods.schedules.by_distribution import Disco
from spsbench.metrics.classifier import Classifier, fit, read_classifier, write_classifier


def made(positions=4000):
    dice = np.random.default_rng(0)
    entropies, peaks = dice.uniform(0, 3, positions), dice.uniform(0, 1, positions)
    return entropies, peaks, Classifier(0.4, -1.3, 2.2).chances(entropies, peaks)


def first_slots(positions):
    return np.arange(positions), np.zeros(positions, np.int64), np.ones(positions)


def test_a_fit_finds_what_made_the_trace(tmp_path):
    found = fit(*made(), first_slots(4000))
    values = found.classifier
    assert (values.bias, values.entropy, values.peak) == pytest.approx((0.4, -1.3, 2.2), abs=1e-3)
    assert values.slot == pytest.approx(0, abs=1e-3)
    assert found.loss < found.plain
    coins = np.random.default_rng(1).random(4000) < made()[2]
    noisy = fit(*made()[:2], coins, first_slots(4000)).classifier
    assert noisy.entropy == pytest.approx(-1.3, abs=0.25)
    write_classifier(tmp_path / "c.json", found)
    assert read_classifier(tmp_path / "c.json") == values
    disco = Disco(path=str(tmp_path / "c.json"), t=0.3)
    disco.k([])
    p = torch.tensor([0.7, 0.3])
    entropy = float(torch.special.entr(p).sum())
    assert bool(disco.go_on(p)) == bool(values.chances(np.array([entropy]), np.array([0.7])) > 0.3)


def test_what_cannot_be_fitted_read_or_written_is_refused(tmp_path):
    entropies, peaks, kept = made(200)
    for wrong in (
        (entropies[:99], peaks[:99], kept[:99]),  # too few
        (np.full(200, np.nan), peaks, kept),
        (entropies, peaks, kept + 1),
    ):
        with pytest.raises(UsageError):
            fit(*wrong, first_slots(len(wrong[0])))
    for number, text in enumerate(("", "[]", "{}", json.dumps({"kind": "spsbench costs"}))):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        with pytest.raises(DataError):
            read_classifier(file)
    with pytest.raises(MissingError):
        write_classifier(
            tmp_path / "none" / "c.json", fit(entropies, peaks, kept, first_slots(200))
        )
