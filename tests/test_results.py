"""Specs and cells: what is written is read back, and any change has another id."""

import json
from dataclasses import asdict, fields, replace

import pytest

from spsbench.results import Cell, ModelRef, Spec


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
def test_specs_are_read_and_written(text: str, args: tuple) -> None:
    spec = Spec.parse(text)
    assert (spec.name, spec.args) == (text.partition(":")[0], args)
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["", ":", "x:", ":a=1", "x:a", "x:a=", "x:=1", "x:a=1,", "x:a=1,a=2"]
)
def test_malformed_specs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|twice"):
        Spec.parse(text)


CELL = Cell(target=ModelRef("t"))
CHANGES = {
    "target": ModelRef("t", "main"),
    "draft": ModelRef("d"),
    "drafter": Spec("ngram"),
    "verifier": Spec("match"),
    "schedule": Spec("constant", (("lookahead", 5),)),
    "engine": Spec("other"),
    "decoder": Spec("other"),
    "temperature": 0.5,
    "top_k": 1,
    "top_p": 0.5,
    "max_new_tokens": 1,
    "stop": ("x",),
    "ignore_eos": True,
    "seed": 1,
    "device": "cuda",
    "dtype": "bfloat16",
    "attention": "eager",
    "trust_remote_code": True,
    "task": Spec("xsum", (("data", "mini"),)),
    "prompt_version": "2",
    "random_weights": True,
}


def test_a_cell_comes_back_from_json_as_it_was() -> None:
    for name, value in CHANGES.items():
        cell = replace(CELL, **{name: value})
        again = Cell.from_json(json.loads(json.dumps(asdict(cell))))
        assert again == cell
        assert again.id == cell.id


def test_every_field_is_in_the_id() -> None:
    assert set(CHANGES) == {field.name for field in fields(Cell)}
    ids = {replace(CELL, **{name: value}).id for name, value in CHANGES.items()}
    assert len(ids | {CELL.id}) == len(CHANGES) + 1


def test_the_id_is_twelve_hex_digits_and_stable() -> None:
    assert CELL.id == Cell(target=ModelRef("t")).id
    assert len(CELL.id) == 12
    assert int(CELL.id, 16) >= 0


def test_the_method_keys_the_noise_and_the_budget_does_not() -> None:
    assert CELL.method == "model/auto/constant:lookahead=4"
    assert replace(CELL, max_new_tokens=1).method == CELL.method
    for name in ("drafter", "verifier", "schedule"):
        assert replace(CELL, **{name: CHANGES[name]}).method != CELL.method
