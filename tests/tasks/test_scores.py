"""Scores of a run: made where they are missing, of texts that end by themselves."""

import zlib

import pytest

from spsbench.benchmark.models import resolve_experiment
from spsbench.errors import DataError
from spsbench.settings.experiment import expand_tables
from spsbench.settings.grid import Sweep
from spsbench.settings.records import Score
from spsbench.store.run import open_run
from spsbench.store.run_folder import WHOLE
from spsbench.tasks.scores import read_scores, score_missing, scores_path, write_scores
from tests.simulation import record
from tests.store.made import manifest


@pytest.mark.parametrize("ignore_end", [False, True])
def test_texts_are_scored_unless_they_go_past_their_end(tmp_path, ignore_end):
    sweep = Sweep(task="xsum:count=4", data="mini", axes={"ignore_eos": (ignore_end,)})
    experiment = resolve_experiment(expand_tables([sweep]))
    samples = list(experiment.parts[0].task.samples(lambda prompt: True))
    with open_run(tmp_path / "run", manifest()) as writer:
        for cell in experiment.cells:
            for sample in samples:
                text = sample.reference if cell.k else "something else"
                writer.append(record(cell, sample.id, 0, [], text=text))
    score_missing(experiment, [samples], tmp_path / "run", WHOLE)
    scores = [score.metrics["rouge2"] for score in read_scores(tmp_path / "run")]
    assert sorted(scores) == ([] if ignore_end else [0.0] * 4 + [100.0] * 4)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"much"', "null"])
def test_a_score_that_is_no_number_is_refused(tmp_path, value):
    write_scores(tmp_path, WHOLE, [Score("c4", "task/1", 0, {"rouge2": 1.0})])
    path = scores_path(tmp_path, WHOLE)
    head = path.read_bytes().partition(b',"crc"')[0].replace(b"1.0", value.encode())
    path.write_bytes(head + f',"crc":"{zlib.crc32(head):08x}"}}\n'.encode())
    with pytest.raises(DataError):
        list(read_scores(tmp_path))
