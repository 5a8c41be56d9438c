"""Panels that are kept on disk are those that would be laid out, or are laid out."""

import copy
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spsbench.engines import packing_file, packings, preparing, verdict
from spsbench.engines.eager import Eager
from spsbench.engines.fast import Fast
from spsbench.engines.kernels.native import missing
from spsbench.engines.laying import Laying
from spsbench.engines.origins import mark, origin_of, stamp
from spsbench.engines.packing import panels, tuning_cache
from spsbench.engines.packing.linear_layers import Packed, slots
from spsbench.engines.packing.worth import shape_of
from spsbench.engines.quantization import coded_layouts
from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import dequantise, quantise
from spsbench.engines.quantization.over_codes import LateCodes, QuantisedLinear
from spsbench.engines.session.engine_config import Choice
from spsbench.models import loader
from spsbench.models.lazy import settle
from spsbench.models.loader import load_model
from tests.tiny_models import laws, tiny

IDS = [3, 1, 4, 1, 5]
dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
pytestmark = pytest.mark.skipif(
    missing(torch.float32) is not None, reason="no kernels, so no panels"
)


@pytest.fixture(autouse=True)
def however_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verdict, "SMALL", 0)
    monkeypatch.setattr(packings, "LEAST", 0)
    monkeypatch.setattr(packings, "SPARE", 0)
    monkeypatch.setattr(packings, "is_local", lambda folder: True)
    monkeypatch.setattr(coded_layouts, "fastest_layout", lambda layer, dtype: "panels")
    tuning_cache.keep(packings.SPEED, "as fast")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    tied = {"tie_word_embeddings": True}
    tiny("llama", 96, dtype=torch.bfloat16, scale=1.0, **tied).save_pretrained(made)
    return made


def load(folder: Path, dtype: str = "bfloat16") -> Any:
    how: dict[str, Any] = {"device": "cpu", "attention": None, "dtype": dtype}
    how |= {"trust_remote_code": False, "allow_pickle": False}
    return load_model(folder, mapped=True, **how)


def prepared(folder: Path, dtype: str = "bfloat16", layout: str = "panels") -> Any:
    """Loaded with every layer laid out."""
    model = load(folder, dtype)
    packed = {shape_of(slot): layout for slot in slots(model)}
    known = Choice(engine="fast", packed=packed, threads=1)
    chosen = Choice.from_json(Fast().prepare(model, known=known.to_json()))
    assert chosen.packed_linears > 0
    settle(model)
    return model


def quantised(folder: Path, name: str, dtype: str = "bfloat16") -> Any:
    """As `prepared`, over codes."""
    model = load(folder, dtype)
    assert quantise(model, name) > 0
    chosen = Choice.from_json(Fast().prepare(model, threads=1))
    assert chosen.packed_linears > 0
    settle(model)
    return model


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "spsbench" / "packings").glob("*"))


def name_of(model: Any, layout: str = "panels") -> str | None:
    """Of the packing of a loaded model, every layer in one layout."""
    packed = {shape_of(slot): layout for slot in slots(model)}
    return Laying.of(model, Choice(engine="fast", packed=packed)).packing(kept=False).name


def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each layer that is laid out from here on."""
    seen: list[int] = []
    own = panels._pack

    def pack(weight: torch.Tensor, into: torch.Tensor) -> None:
        seen.append(len(weight))
        own(weight, into)

    monkeypatch.setattr(panels, "_pack", pack)
    return seen


@dtypes
def test_a_second_load_lays_nothing_out_and_is_the_same(
    dtype: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, first = load(folder, dtype), prepared(folder, dtype)
    seen = laid_out(monkeypatch)
    assert len(files(tmp_path)) == 1
    second = prepared(folder, dtype)
    assert not seen
    assert torch.equal(laws(second, IDS), laws(first, IDS))
    for mapped, made in zip(second.modules(), first.modules(), strict=True):
        if isinstance(mapped, Packed):
            assert torch.equal(mapped.weight, made.weight)  # type: ignore[arg-type]
    assert torch.equal(laws(copy.deepcopy(second), IDS), laws(stock, IDS))
    for path in files(tmp_path):  # whoever has it mapped is left alone
        path.unlink()
    assert torch.equal(laws(second, IDS), laws(first, IDS))


def without_origin(model: Any) -> Any:
    """So that its codes are made at once."""
    for parameter in model.parameters():
        del parameter.origin
    return model


@dtypes
@pytest.mark.parametrize("name", FORMATS)
def test_codes_that_are_kept_are_not_made_again(
    name: str, dtype: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = without_origin(load(folder, dtype))
    assert quantise(stock, name) == sum(
        isinstance(module, QuantisedLinear) for module in stock.modules()
    )
    first = quantised(folder, name, dtype)
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(Codes, "of", lambda *given: pytest.fail("rounded again"))
    monkeypatch.setattr(preparing, "Check", lambda model: pytest.fail("judged again"))
    second = quantised(folder, name, dtype)
    assert torch.equal(laws(second, IDS), laws(first, IDS))
    for plain in copy.deepcopy(second), copy.deepcopy(first):
        dequantise(plain)
        wanted = copy.deepcopy(stock)
        dequantise(wanted)
        assert torch.equal(laws(plain, IDS), laws(wanted, IDS))


def test_each_format_has_a_packing_and_a_verdict(folder: Path, tmp_path: Path) -> None:
    for count, name in enumerate(FORMATS, 1):
        quantised(folder, name)
        assert len(files(tmp_path)) == count
        assert len(list(tmp_path.glob("judged-*"))) == count
    prepared(folder)
    assert len(files(tmp_path)) == count + 1


def test_codes_of_another_model_are_noticed(folder: Path, tmp_path: Path) -> None:
    first = quantised(folder, "int8")
    (path,) = files(tmp_path)
    packing_file.write(path, packing_file.read(path).flip(0).contiguous())
    assert torch.equal(laws(quantised(folder, "int8"), IDS), laws(first, IDS))
    assert torch.equal(laws(quantised(folder, "int8"), IDS), laws(first, IDS))


@pytest.mark.parametrize("engine", [Fast, Eager])
def test_late_codes_are_codes(engine: type, folder: Path) -> None:
    late = load(folder)
    assert quantise(late, "int4") > 0
    early = without_origin(load(folder))
    quantise(early, "int4")
    assert any(isinstance(module, LateCodes) for module in late.modules())
    assert not any(isinstance(module, LateCodes) for module in early.modules())
    assert torch.equal(laws(late, IDS), laws(early, IDS))
    for model in late, early:
        engine().prepare(model)
    assert not any(isinstance(module, LateCodes) for module in late.modules())
    assert torch.equal(laws(late, IDS), laws(early, IDS))


def test_what_is_written_to_a_mapped_layer_stays_there(folder: Path, tmp_path: Path) -> None:
    prepared(folder)
    (path,) = files(tmp_path)
    before = path.read_bytes()[packing_file.HEADER :]
    model = prepared(folder)
    for module in model.modules():
        if isinstance(module, Packed):
            module.weight.data.zero_()
    assert path.read_bytes()[packing_file.HEADER :] == before


def test_other_files_dtypes_and_layouts_have_packings_of_their_own(
    folder: Path, tmp_path: Path
) -> None:
    for count, how in enumerate([("bfloat16", "panels"), ("float32", "panels")], 1):
        prepared(folder, *how)
        assert len(files(tmp_path)) == count
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes())  # the same bytes, but who knows
    prepared(folder)
    assert len(files(tmp_path)) == 3
    moved = Path(shutil.copytree(folder, tmp_path / "copy"))
    prepared(moved)
    assert len(files(tmp_path)) == 4
    (tmp_path / "link").symlink_to(folder)
    prepared(tmp_path / "link")  # the same files
    assert len(files(tmp_path)) == 4
    config = folder / "config.json"
    config.write_text(config.read_text())
    prepared(folder)
    assert len(files(tmp_path)) == 5


def test_layouts_and_the_code_that_lays_out_are_in_the_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name_of(load(folder)), name_of(load(folder, "float32"))}
    names.add(name_of(load(folder, "float32"), "onednn"))
    model = load(folder)
    quantise(model, "int8")
    laying = Laying.of(model, None)
    for layout in "panels", "tiles":
        wanted = dict.fromkeys(laying.wanted, layout)
        names.add(replace(laying, wanted=wanted).packing(kept=False).name)
    with monkeypatch.context() as later:
        later.setattr(packings, "_code", lambda: b"another")
        names.add(name_of(load(folder)))
    assert None not in names
    assert len(names) == 6
    assert name_of(load(folder)) in names


def test_weights_that_were_changed_are_laid_out(folder: Path, tmp_path: Path) -> None:
    """In one number, which the judge may not notice."""
    prepared(folder)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] += 0.5
    save_file(tensors, weights, metadata={"format": "pt"})
    wanted = load(folder)
    found = prepared(folder)
    assert torch.equal(laws(copy.deepcopy(found), IDS), laws(wanted, IDS))


def test_an_origin_is_that_of_numbers_as_they_were_read(folder: Path) -> None:
    model, other = load(folder), load(folder)
    slot = next(iter(slots(model)))
    name = origin_of(slot.layer.weight)
    assert name == origin_of(next(iter(slots(other))).layer.weight) is not None
    assert len({origin_of(p) for p in model.parameters()}) == len(list(model.parameters()))
    with torch.no_grad():
        slot.layer.weight[0, 0] += 1
    assert origin_of(slot.layer.weight) is None
    moved = next(iter(slots(other))).layer.weight
    moved.data = moved.data.clone()
    assert origin_of(moved) is None
    assert origin_of(copy.deepcopy(load(folder)).lm_head.weight) is None
    assert origin_of(next(tiny("llama").parameters())) is None


def test_origins_are_of_models_whose_files_say_all(folder: Path) -> None:
    how: dict[str, Any] = {"device": "cpu", "attention": None, "dtype": "bfloat16"}
    theirs = load_model(folder, **how, trust_remote_code=True, allow_pickle=False)
    assert all(origin_of(parameter) is None for parameter in theirs.parameters())
    with torch.inference_mode():  # as ranks load: nobody counts what is written
        there = tiny("llama")
        mark(there, stamp([folder / "config.json"], ""))
    assert all(origin_of(parameter) is None for parameter in there.parameters())


def test_late_codes_have_the_origin_of_their_weight_now(folder: Path) -> None:
    model = load(folder)
    quantise(model, "int8")
    layer = next(module for module in model.modules() if isinstance(module, LateCodes))
    assert str(layer.origin).endswith("Format(bits=8, group=None)")
    with torch.no_grad():
        layer.weight[0, 0] += 1
    assert layer.origin is None


def test_files_that_change_while_they_are_read_leave_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = loader.lazy_tensors

    def slowly(files: list[Path], **given: Any) -> Any:
        found = own(files, **given)
        files[0].touch()
        return found

    monkeypatch.setattr(loader, "lazy_tensors", slowly)
    assert all(origin_of(parameter) is None for parameter in load(folder).parameters())
    prepared(folder)
    monkeypatch.undo()
    assert not files(tmp_path)


def test_files_that_change_before_panels_are_kept_leave_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = panels._pack

    def pack(weight: torch.Tensor, into: torch.Tensor) -> None:
        own(weight, into)
        (folder / "model.safetensors").touch()

    monkeypatch.setattr(panels, "_pack", pack)
    prepared(folder)
    assert not files(tmp_path)


def test_a_stamp_tells_how_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    stamps = {stamp([path], "bfloat16"), stamp([path], "float32")}
    path.write_text("next")
    stamps.add(stamp([path], "bfloat16"))
    assert len(stamps) == 3
    assert stamp([path], "float32") == stamp([path], "float32")


def test_layers_of_unknown_origin_are_not_kept(folder: Path, tmp_path: Path) -> None:
    model = tiny("llama", 96, dtype=torch.float32)
    packed = {shape_of(slot): "panels" for slot in slots(model)}
    Fast().prepare(model, known=Choice(engine="fast", packed=packed, threads=1).to_json())
    assert not files(tmp_path)
    assert packings.name_of([]) is None
    assert packings.name_of([("a file", "panels"), (None, "panels")]) is None
    names = {packings.name_of([("a", "panels")] * count) for count in (1, 2)}
    names.add(packings.name_of([("a", "tiles")]))
    assert len(names) == 3


@pytest.mark.parametrize("damage", ["cut", "header", "deep", "empty", "page", "in place"])
def test_damage_is_noticed(
    damage: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(folder)
    (path,) = files(tmp_path)
    whole = bytearray(path.read_bytes())
    page = slice(packing_file.HEADER, packing_file.HEADER + 512)
    spoilt = whole[: page.start] + bytes(512) + whole[page.stop :]
    ways = {"cut": whole[:-9], "header": b"{" * 9000, "deep": b"[" * 9000, "empty": b""}
    times = path.stat()
    path.write_bytes(ways.get(damage, spoilt))
    if damage == "page":  # it was lost when the machine went down
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        monkeypatch.setattr(packing_file, "boot", lambda: "another")
    seen = laid_out(monkeypatch)
    assert torch.equal(laws(prepared(folder), IDS), laws(first, IDS))
    assert seen
    assert len(path.read_bytes()) == len(whole)
    del seen[:]
    prepared(folder)
    assert not seen


def test_after_a_start_of_the_machine_a_sum_is_looked_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(folder)
    (path,) = files(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(packing_file, "boot", lambda: "another")
    added: list[int] = []
    own = packing_file._sum
    monkeypatch.setattr(packing_file, "_sum", lambda p: added.append(len(p)) or own(p))
    for _ in range(3):
        assert packings.recall(path.stem) is not None
    assert len(added) == 1
    path.touch()  # somebody has written to it, who knows what
    for _ in range(2):
        assert packings.recall(path.stem) is not None
    assert len(added) == 2
    assert path.read_bytes()[packing_file.HEADER :] == before[packing_file.HEADER :]
    assert json.loads(path.read_bytes()[: packing_file.HEADER].rstrip(b"\0"))["boot"] == "another"


def test_panels_of_another_model_are_noticed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the judge's logits, should ever two have one name."""
    first = prepared(folder)
    (path,) = files(tmp_path)
    found = packing_file.read(path).clone()
    packing_file.write(path, found.flip(0).contiguous())
    model = load(folder)
    known = Choice(engine="fast", packed={shape_of(s): "panels" for s in slots(model)}, threads=1)
    chosen = Choice.from_json(Fast().prepare(model, known=known.to_json()))
    assert "not those kept" in chosen.reason
    assert not files(tmp_path)
    stock = load(folder)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert all(map(torch.equal, model.parameters(), stock.parameters()))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(laws(prepared(folder), IDS), laws(first, IDS))


def test_a_model_that_is_judged_anew_has_its_packing_replaced(folder: Path, tmp_path: Path) -> None:
    prepared(folder)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    packing_file.write(path, packing_file.read(path).flip(0).contiguous())
    (judged,) = tmp_path.glob("judged-*")
    judged.unlink()
    prepared(folder)
    assert path.read_bytes()[packing_file.HEADER :] == whole[packing_file.HEADER :]


def test_what_was_found_is_not_written_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(folder)
    monkeypatch.setattr(packing_file, "write", lambda *given: pytest.fail("written again"))
    prepared(folder)


def test_panels_of_a_model_that_they_are_wrong_for_are_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        panels.PanelLinear, "forward", lambda self, x: x.new_ones(*x.shape[:-1], self.out_features)
    )
    model = load(folder)
    packed = {shape_of(slot): "panels" for slot in slots(model)}
    Fast().prepare(model, known=Choice(engine="fast", packed=packed, threads=1).to_json())
    assert not files(tmp_path)


def test_what_is_not_worth_the_disk_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_is_kept() -> None:
        prepared(folder)
        assert not files(tmp_path)

    with monkeypatch.context() as small:
        small.setattr(packings, "LEAST", 2**30)
        nothing_is_kept()
    with monkeypatch.context() as full:
        full.setattr(packings, "SPARE", 2**60)
        nothing_is_kept()
    with monkeypatch.context() as remote:
        remote.setattr(packings, "is_local", lambda folder: False)
        nothing_is_kept()
    with monkeypatch.context() as none:
        none.setenv("SPSBENCH_PACKINGS_GB", "0")
        nothing_is_kept()
    tuning_cache.keep(packings.SPEED, "slower")
    nothing_is_kept()
    tuning_cache.keep(packings.SPEED, "as fast")
    prepared(folder)
    assert len(files(tmp_path)) == 1
    monkeypatch.setenv("SPSBENCH_PACKINGS_GB", "0")
    assert packings.recall(files(tmp_path)[0].stem) is None  # nor is it used


@pytest.mark.parametrize(("times", "said"), [((2.0, 1.0), "slower"), ((1.0, 1.0), "as fast")])
def test_whether_a_file_is_read_as_fast_is_seen_once(
    times: tuple[float, float],
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    def typical(ways: list[Any], clock: Any) -> list[float]:
        assert all(way().shape == (1, 0) for way in ways)  # it is too small for a panel
        tried.append(ways)
        return list(times)

    monkeypatch.setattr(packings, "typical", typical)
    tuning_cache.keep(packings.SPEED, None)
    for dtype in "bfloat16", "float32":
        prepared(folder, dtype)
    assert len(tried) == 1
    assert tuning_cache.recall(packings.SPEED) == said
    assert len(files(tmp_path)) == (0 if said == "slower" else 2)


def test_what_was_not_used_for_longest_makes_way(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Path] = {}
    for name in FORMATS:
        before = set(files(tmp_path))
        quantised(folder, name)
        (found[name],) = set(files(tmp_path)) - before
    for at, path in enumerate(found.values()):  # the first one for longest
        os.utime(path, ns=(at, path.stat().st_mtime_ns))
    quantised(folder, "int8")  # is in use again
    unfinished = found["int8"].with_name("killed.new")
    unfinished.touch()
    os.utime(unfinished, (1, 1))
    room = sum(path.stat().st_size for name, path in found.items() if name != "int4")
    monkeypatch.setenv("SPSBENCH_PACKINGS_GB", str(room / 1e9))
    quantised(folder, "int8")
    assert files(tmp_path) == sorted({*found.values()} - {found["int4"]})
    assert sum(packings.sizes()) == room
    monkeypatch.setenv("SPSBENCH_PACKINGS_GB", "0")
    quantised(folder, "int8")
    assert not files(tmp_path)


def test_two_that_have_no_place_together_do_not_push_each_other_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(folder, "float32")
    (first,) = files(tmp_path)
    monkeypatch.setenv("SPSBENCH_PACKINGS_GB", str(first.stat().st_size * 1.2 / 1e9))
    for _ in range(2):
        prepared(folder, "bfloat16")
        assert files(tmp_path) == [first]
    os.utime(first, ns=(0, first.stat().st_mtime_ns))  # nobody has used it for a day
    prepared(folder, "bfloat16")
    assert first not in files(tmp_path)
    assert len(files(tmp_path)) == 1
