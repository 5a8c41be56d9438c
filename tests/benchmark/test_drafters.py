"""Several drafters in one experiment: the cells that make sense, and what is left out."""

import pytest

from spsbench.benchmark.models import resolve_experiment
from spsbench.errors import UsageError
from spsbench.settings.experiment import expand_tables
from spsbench.settings.grid import Sweep
from spsbench.settings.options import parse


def cells(**asked):
    asked = {"task": "latency", "target": "T", "k": "2,4", "verifier": "auto", **asked}
    return resolve_experiment(expand_tables([parse(asked, Sweep)[0]])).cells


@pytest.mark.needs_fast
def test_each_drafter_takes_what_it_has_a_use_for(said):
    made = cells(drafter=["ngram", "model"], draft="D")
    found = [(c.k, c.drafter.name, c.draft and c.draft.id) for c in made]
    assert found == [
        (0, "none", None),
        (2, "ngram", None),
        (2, "model", "D"),
        (4, "ngram", None),
        (4, "model", "D"),
    ]
    assert said == []


def test_several_draft_models_make_one_cell_of_a_drafter_without_one():
    made = cells(k="2", drafter=["ngram", "model"], draft=["D", "E"])
    assert [c.draft and c.draft.id for c in made] == [None, None, "D", "E"]


@pytest.mark.needs_fast
def test_what_cannot_be_is_left_out_and_said(said):
    made = cells(drafter=["ngram", "model"])
    assert [c.drafter.name for c in made] == ["none", "ngram", "ngram"]
    assert len(said) == 1
    assert "left out SpS K=2, SpS K=4: `drafter` model: expected a draft model" in said[0]
    said.clear()
    made = cells(k="2", drafter=["ngram", "model"], draft="D", verifier="block")
    assert [c.drafter.name for c in made] == ["none", "model"]
    assert "left out SpS ngram block K=2" in said[0]


def test_one_drafter_alone_is_refused_as_ever_and_so_is_nothing_left():
    with pytest.raises(UsageError):
        cells(drafter="ngram", draft="D")
    with pytest.raises(UsageError):
        cells(drafter=["ngram", "ngram:n=2"], verifier="block")
