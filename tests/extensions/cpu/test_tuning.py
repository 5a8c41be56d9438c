"""Prefetching is measured once on a machine, kept, and taken over by a resumed run."""

import shutil

import pytest
import torch

from spsbench.engines.quantization.layers import quantise
from spsbench.extensions.cpu.fast import Fast
from spsbench.extensions.cpu.packing import tuning
from spsbench.extensions.cpu.packing.coded_panels import QuantisedPanels, kernel_of
from spsbench.extensions.cpu.packing.tuning import (
    PREFETCHES,
    USUAL,
    Prefetch,
    measured_prefetch,
    prefetch_of,
)
from tests.oracles.models import tiny

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler"
)
FAR = Prefetch("into", 4096)
MEASURE = tuning.prefetch_seconds


def times(best, by=0.5):
    return {way: by if way == best else 1.0 for way in PREFETCHES}


@pytest.fixture(autouse=True)
def measured(tmp_path, monkeypatch):
    """Nothing is known yet, and a measurement finds `FAR` at once; the measured types."""
    found = []
    monkeypatch.setattr(tuning, "_current", {})
    monkeypatch.setattr(tuning, "tuning_file", lambda: tmp_path / "kept.json")
    monkeypatch.setattr(
        tuning, "prefetch_seconds", lambda dtype, *_: found.append(dtype) or times(FAR)
    )
    return found


def test_it_is_measured_once_and_kept(measured):
    assert [measured_prefetch(torch.float32) for _ in range(3)] == [FAR] * 3
    tuning._current.clear()  # another process
    assert measured_prefetch(torch.float32) == prefetch_of(torch.float32) == FAR
    assert measured == [torch.float32]
    assert prefetch_of(torch.bfloat16) == USUAL


@pytest.mark.parametrize("weights", ["int8", "int4", "int4-64"])
def test_a_kernel_of_codes_has_a_way_of_its_own(weights, monkeypatch):
    """Each way is measured by real products; another kernel's stays as it was."""
    monkeypatch.setattr(tuning, "prefetch_seconds", MEASURE)
    model = tiny("llama", dtype=torch.bfloat16)
    quantise(model, weights)
    Fast().prepare(model, threads=1)
    parts = [part for part in model.modules() if isinstance(part, QuantisedPanels)]
    for part in parts:
        name = kernel_of(part.kernels, part.bits, part.least)
        prefetch = tuning._current[torch.bfloat16, name]
        assert prefetch_of(torch.bfloat16, name) == prefetch
        assert tuning.recall(f"reading torch.bfloat16 {name}") == prefetch.name
    assert parts


def test_a_damaged_file_or_an_unknown_way_is_measured_again():
    for content in b"{", b"[]", b'{"reading torch.float32": "of another version"}':
        path = tuning.tuning_file()
        path.write_bytes(content)
        tuning._current.clear()
        assert measured_prefetch(torch.float32) == FAR
        assert tuning.recall("reading torch.float32") == "into 4096"


def test_a_run_says_what_was_measured(measured):
    first = Fast().prepare(tiny("llama", dtype=torch.float32), threads=1)
    assert first["reading"] == "into 4096"


def test_without_a_kernel_there_is_nothing_to_measure(measured):
    assert measured_prefetch(torch.float64) == USUAL
    assert not measured
