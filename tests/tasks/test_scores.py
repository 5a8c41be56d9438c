"""Scores of a run: made where they are missing, and kept whenever it is stopped."""

import pytest

from spsbench.settings.experiment import plan
from spsbench.settings.sweep import Sweep
from spsbench.store.run import open_run
from spsbench.store.run_folder import WHOLE
from spsbench.tasks.scores import read_scores, score_missing
from tests.simulation import record
from tests.store.made import manifest


@pytest.fixture
def experiment():
    return plan([Sweep(task="xsum:count=4", data="mini")])


@pytest.fixture
def samples(experiment):
    return list(experiment.parts[0].task.samples(lambda prompt: True))


def written(folder, experiment, samples):
    with open_run(folder, manifest()) as writer:
        for cell in experiment.cells:
            for sample in samples:
                said = sample.reference if cell.k else "something else"
                writer.append(record(cell, sample.id, 0, [], text=said))
    return folder


def test_texts_past_their_end_are_not_scored(tmp_path, samples):
    timing = plan([Sweep(task="xsum:count=4", data="mini", ignore_end=True)])
    folder = written(tmp_path / "run", timing, samples)
    score_missing(timing, [samples], folder, WHOLE)
    assert list(read_scores(folder)) == []
