"""Specs and cells: what is written is read back, and any change has another id."""

import json
from dataclasses import fields, replace

import pytest

from spsbench.settings.cell import Cell
from spsbench.settings.grid import make_request
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import DraftProbs, Record, RoundRecord
from spsbench.spec import Spec
from tests.settings.test_options import GIVEN


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("ngram", ()),
        ("ngram:n=3,min_n=1", (("n", 3), ("min_n", 1))),
        ("x:a=1.5,b=true,c=false,d=word", (("a", 1.5), ("b", True), ("c", False), ("d", "word"))),
        ("x:a=b=c", (("a", "b=c"),)),
        ("x:a=1e-3", (("a", 0.001),)),
    ],
)
def test_specs_are_read_and_written(text, args):
    spec = Spec.parse(text)
    assert (spec.name, spec.args) == (text.partition(":")[0], args)
    assert Spec.parse(str(spec)) == spec


MODEL = {
    "id": "other",
    "revision": "main",
    "weights": "random",
    "adapter": "a=0.5+b",
    "trust_remote_code": True,
    "engine": Spec("other"),
    "device": "cuda",
    "dtype": "bfloat16",
    "attention": "eager",
    "parallel": "tp:2",
}
CELL = Cell(target=ModelSpec("t"))
USUAL = {"target": "t", "draft": "d", "revision": "r", "draft_revision": "s"}
BASE = Cell.from_request(make_request(**USUAL))
NO_OPTIONS = {
    "batch": 2,
    "continuous": True,
    "task": Spec("xsum", (("data", "mini"),)),
    "prompt_version": "2",
    "chat": True,
    "system": "Be brief.",
}
CHANGED = {
    name: Cell.from_request(make_request(**USUAL | {name: value})) for name, value in GIVEN.items()
}
CHANGED |= {name: BASE.but(**{name: value}) for name, value in NO_OPTIONS.items()}


def test_a_cell_comes_back_from_json_as_it_was():
    for cell in CHANGED.values():
        again = Cell.from_json(json.loads(json.dumps(cell.to_json())))
        assert again == cell
        assert again.id == cell.id


@pytest.mark.needs_fast
def test_every_field_is_in_the_id():
    names = {field.name for field in fields(Cell)}
    cells = CHANGED.values()
    assert names == {n for n in names for c in cells if getattr(c, n) != getattr(BASE, n)}
    assert len({cell.id for cell in cells} | {BASE.id}) == len(CHANGED) + 1


@pytest.mark.parametrize("model", ["target", "draft"])
def test_every_field_of_a_model_is_in_the_id(model):
    assert set(MODEL) == {field.name for field in fields(ModelSpec)}
    changed = [replace(ModelSpec("t"), **{name: value}) for name, value in MODEL.items()]
    ids = {CELL.but(**{model: each}).id for each in (ModelSpec("t"), *changed)}
    assert len(ids) == len(MODEL) + 1


def test_the_method_keys_the_noise_and_the_budget_does_not():
    assert CELL.noise_key == "model/auto/constant:lookahead=4"
    assert CELL.but(max_new_tokens=1).noise_key == CELL.noise_key
    for name in ("drafter", "verifier", "schedule"):
        assert CHANGED[name].noise_key != BASE.noise_key


@pytest.mark.parametrize(
    ("laws", "length"),
    [
        (DraftProbs([1], [1.0], [0.5]), 3),
        (DraftProbs([1, 2], [1.0, 1.0], [0.5, 0.5], [-1, 0]), 4),
        (DraftProbs([1], [1.0], [0.5], None, [[1, 0.5], [2, 0.25]]), 5),
    ],
)
def test_laws_come_back_and_what_was_not_recorded_is_not_written(laws, length):
    made = Record(
        prompt_tokens=1,
        tokens=[],
        text="",
        finish="length",
        prefill_seconds=0.0,
        rounds=[RoundRecord(1, 1, 0, 1, None, 0.0, 0.0, 0.0)],
        laws=[laws],
    )
    written = made.to_json()
    assert len(written["laws"][0]) == length
    assert Record.from_json(json.loads(json.dumps(written))) == made
