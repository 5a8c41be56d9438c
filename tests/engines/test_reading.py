"""How weights are read is measured once on a machine, kept, and taken over by a resumed run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from spsbench.engines.fast import Fast
from spsbench.engines.kernels import native
from spsbench.engines.packing import tuning
from spsbench.engines.packing.layouts import shape_of
from spsbench.engines.packing.linear_layers import slots
from spsbench.engines.packing.tuning import (
    PREFETCHES,
    USUAL,
    Prefetch,
    fastest_prefetch,
    measured_prefetch,
    prefetch_of,
    select_prefetch,
)
from spsbench.engines.session.engine_config import Choice
from tests.tiny_models import tiny

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler"
)
FAR = Prefetch("into", 4096)
HERE = tuning.place  # before tests are given a place of their own


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_current", {})


def times(best: Prefetch, by: float = 0.5) -> dict[Prefetch, float]:
    return {way: by if way == best else 1.0 for way in PREFETCHES}


def test_it_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []
    monkeypatch.setattr(
        tuning, "prefetch_seconds", lambda dtype: measured.append(dtype) or times(FAR)
    )
    assert [measured_prefetch(torch.float32) for _ in range(3)] == [FAR] * 3
    tuning._current.clear()  # another process
    assert measured_prefetch(torch.float32) == prefetch_of(torch.float32) == FAR
    assert measured == [torch.float32]
    assert prefetch_of(torch.bfloat16) == USUAL


def test_the_usual_way_stays_where_none_is_clearly_faster() -> None:
    assert fastest_prefetch(times(FAR, 0.99)) == USUAL
    assert fastest_prefetch(times(FAR, 0.9)) == FAR


def test_every_way_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PIECE", 2**16)
    monkeypatch.setattr(tuning, "TRIALS", 2)
    before = torch.get_num_threads()
    for dtype in native.KINDS:
        found = tuning.prefetch_seconds(dtype)
        assert list(found) == list(PREFETCHES)
        assert all(value > 0 for value in found.values())
    assert torch.get_num_threads() == before


def test_a_damaged_file_or_an_unknown_way_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "prefetch_seconds", lambda dtype: times(FAR))
    for content in b"{", b"[]", b'{"reading torch.float32": "of another version"}':
        path = tuning.place()
        assert path is not None
        path.write_bytes(content)
        tuning._current.clear()
        assert measured_prefetch(torch.float32) == FAR
        assert tuning.recall("reading torch.float32") == "into 4096"


def test_another_machine_has_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "folder", lambda: tmp_path)
    places = {HERE()}
    monkeypatch.setattr(tuning, "processor", lambda: b"another")
    places.add(HERE())
    monkeypatch.setattr(tuning, "library", lambda: "no C compiler")
    places.add(HERE())
    assert len(places) == 3
    monkeypatch.setattr(tuning, "folder", lambda: None)
    assert HERE() is None


def test_where_nothing_can_be_kept_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in None, tmp_path / "no such folder" / "kept.json":
        monkeypatch.setattr(tuning, "place", lambda place=place: place)
        tuning.keep("x", 1)
        assert tuning.recall("x") is None


def test_a_run_keeps_it_and_a_resumed_one_takes_it_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "prefetch_seconds", lambda dtype: times(FAR))
    first: dict[str, Any] = Fast().prepare(tiny("llama", dtype=torch.float32), threads=1)
    assert first["reading"] == "into 4096"
    tuning._current.clear()
    monkeypatch.setattr(tuning, "prefetch_seconds", lambda dtype: pytest.fail("measured"))
    tuning.keep("reading torch.float32", "past 2048")
    again = Fast().prepare(tiny("llama", dtype=torch.float32), known=first)
    assert again == first
    assert prefetch_of(torch.float32) == FAR


def test_a_run_of_an_older_version_reads_as_usual() -> None:
    model = tiny("llama", dtype=torch.float32)
    packed = {shape_of(slot): "panels" for slot in slots(model)}
    told = Choice(engine="fast", packed=packed, threads=1).to_json()
    del told["reading"]
    assert Fast().prepare(model, known=told)["reading"] == USUAL.name
    select_prefetch(torch.float32, "of another version")
    assert prefetch_of(torch.float32) == USUAL


def test_without_a_kernel_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "prefetch_seconds", lambda dtype: pytest.fail("measured"))
    assert measured_prefetch(torch.float64) == USUAL
