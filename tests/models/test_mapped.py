"""Tensors that are parts of a file for as long as a model is prepared, and no longer."""

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spsbench.engines.fast import Fast
from spsbench.engines.packing.layouts import LAYOUTS, layouts
from spsbench.engines.packing.linear_layers import Packed, slots
from spsbench.engines.packing.worth import shape_of
from spsbench.engines.session.engine_config import Choice
from spsbench.models import lazy, loader
from spsbench.models.lazy import lazy_tensors, settle
from spsbench.models.loader import load_model
from spsbench.models.weights import read_headers
from tests.tiny_models import laws

IDS = [3, 1, 4, 1, 5]
FILE = "model.safetensors"


def load(folder: Path, dtype: str, *, mapped: bool) -> Any:
    how: dict[str, Any] = {"device": "cpu", "attention": None, "dtype": dtype}
    how |= {"trust_remote_code": False, "allow_pickle": False}
    return load_model(folder, mapped=mapped, **how)


def parts() -> int:
    """How many there are."""
    gc.collect()
    return sum(part() is not None for part in lazy._PARTS.values())


def overwrite(folder: Path) -> None:
    """All numbers by zeros, in place: where they are mapped they change at once."""
    for path in folder.glob("*.safetensors"):
        with path.open("r+b") as file:
            for header in read_headers([path]).values():
                file.seek(header.span.start)
                file.write(b"\0" * len(header.span))


def own(name: str, place: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of a folder that others use."""
    return Path(shutil.copytree(request.getfixturevalue(name), place / name))


@pytest.mark.parametrize("layout", [*LAYOUTS, None])
@pytest.mark.parametrize(("name", "dtype"), [("llama", "bfloat16"), ("gpt2", "float32")])
def test_numbers_are_those_of_the_file_and_stay(
    name: str, dtype: str, layout: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, before = own(name, tmp_path, request), parts()
    plain = load(folder, dtype, mapped=False)
    assert parts() == before
    model = load(folder, dtype, mapped=True)
    assert parts() > before
    assert torch.equal(laws(model, IDS), laws(plain, IDS))
    layers = [slot for slot in slots(model) if layout in layouts(slot.weight)]
    if layout and not layers:
        pytest.skip(f"no {layout} here")
    wanted = {shape_of(slot): str(layout) for slot in layers}
    del layers
    known = Choice(engine="fast", packed=wanted, threads=1).to_json()
    for each in plain, model:
        Fast().prepare(each, known=known)
    assert any(isinstance(module, Packed) for module in model.modules()) == bool(layout)
    settle(model)
    assert parts() == before
    overwrite(folder)
    assert torch.equal(laws(model, IDS), laws(plain, IDS))


def test_without_settling_a_file_that_changes_is_seen(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = own("llama", tmp_path, request)
    model = load(folder, "bfloat16", mapped=True)
    before = laws(model, IDS)
    overwrite(folder)
    assert not torch.equal(laws(model, IDS), before)


def test_numbers_of_another_kind_are_not_parts(llama: Path) -> None:
    before = parts()
    for dtype in "float32", "float16":
        model = load(llama, dtype, mapped=True)
        assert parts() == before
        assert model.dtype == getattr(torch, dtype)


def test_as_many_files_are_open_as_may_be(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def refuse(kind: int, wanted: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(lazy.resource, "getrlimit", lambda kind: (40, 1000))
    monkeypatch.setattr(lazy.resource, "setrlimit", lambda kind, wanted: asked.append(wanted))
    before = parts()
    model = load(llama, "bfloat16", mapped=True)
    assert parts() > before
    ((least, most),) = asked
    assert (least > 40, most) == (True, 1000)
    del model
    monkeypatch.setattr(lazy.resource, "setrlimit", refuse)
    before = parts()
    assert load(llama, "bfloat16", mapped=True) is not None
    assert parts() == before  # copies


def test_odd_places_and_kinds_are_read(tmp_path: Path) -> None:
    """A tensor that begins within a number, a single number, and whole ones."""
    tensors = {"whole": torch.arange(9), "one": torch.tensor(2.5)}
    tensors["half"] = torch.arange(6.0).view(2, 3).bfloat16()
    save_file(tensors, tmp_path / FILE)
    found = lazy_tensors([tmp_path / FILE], widen=False, mapped=True)
    for name, wanted in load_file(tmp_path / FILE).items():
        assert torch.equal(found[name][...], wanted)
        assert found[name][...].dtype == wanted.dtype
    assert lazy._part(tmp_path / FILE, range(3, 11), torch.float32) is None


def test_what_is_written_is_not_written_to_the_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / FILE)
    lazy_tensors([tmp_path / FILE], widen=False, mapped=True)["a"][...].zero_()
    assert torch.equal(load_file(tmp_path / FILE)["a"], torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_norm_settles_what_is_sound_and_nothing_else(dtype: torch.dtype) -> None:
    numbers = torch.linspace(-1, 1, 999).to(dtype)
    assert loader._small(numbers)
    for wrong in float("nan"), float("inf"), -float("inf"), 40000.0:
        flawed = numbers.clone()
        flawed[500] = wrong
        assert not loader._small(flawed)
