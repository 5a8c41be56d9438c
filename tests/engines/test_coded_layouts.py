"""Codes by the matrix unit are the same weights; their layout is measured, kept and resumed."""

from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from spsbench.engines.kernels.native import missing
from spsbench.engines.packing.trials import threads
from spsbench.engines.preparing import prepare
from spsbench.engines.quantization import coded_layouts
from spsbench.engines.quantization.coded_layouts import (
    LAYOUTS,
    fastest_layout,
    layouts,
    part,
    shape_of,
)
from spsbench.engines.quantization.coded_tiles import QuantisedTiles
from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import quantise
from spsbench.engines.quantization.over_codes import QuantisedLinear
from spsbench.engines.quantization.panels import QuantisedPanels
from spsbench.engines.session.engine_config import Choice, choice_of
from tests.tiny_models import tiny

HALF = torch.bfloat16
NO_UNIT = QuantisedTiles.refuses(HALF)
unit = pytest.mark.skipif(NO_UNIT is not None, reason=str(NO_UNIT))
compiled = pytest.mark.skipif(missing(HALF) is not None, reason="needs a C compiler")
every = pytest.mark.parametrize("name", [*FORMATS, "over minima"])


def over_codes(name: str, out: int, width: int) -> QuantisedLinear:
    generator = torch.Generator().manual_seed(out + width)
    codes = Codes.of(
        torch.randn(out, width, generator=generator), FORMATS.get(name, FORMATS["int4"])
    )
    if name not in FORMATS:
        codes = codes._replace(numbers=codes.numbers + 8, minima=codes.scales * -3.7)
    return QuantisedLinear(codes, torch.randn(out, generator=generator).to(HALF))


def inputs(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(HALF)


@unit
@every
@pytest.mark.parametrize("size", [(32, 32), (70, 100), (33, 192), (31, 6), (64, 1312)], ids=str)
def test_products_are_those_of_their_numbers(name: str, size: tuple[int, int]) -> None:
    """Rounded to bfloat16 at the end, once: as near to the exact law as the other kernel."""
    layer = over_codes(name, *size)
    tiles, panels = QuantisedTiles(layer), QuantisedPanels(layer)
    assert torch.equal(tiles.weight, panels.weight)
    for rows in 1, 2, 5, 16, 17, 35:
        x = inputs(rows, size[1])
        exact = linear(x.double(), layer.codes.dense(torch.float64), layer.bias.double())
        ours, theirs = ((made(x) - exact).norm() for made in (tiles, panels))
        assert ours <= 1.01 * theirs + 1e-6


@unit
@every
def test_a_row_is_the_same_number_in_any_pass_on_any_threads(name: str) -> None:
    tiles, x = QuantisedTiles(over_codes(name, 70, 200)), inputs(39, 200)
    whole = tiles(x)
    for first in range(0, 39, 3):
        for last in first + 1, min(first + 5, 39), min(first + 17, 39), 39:
            assert torch.equal(tiles(x[first:last]), whole[first:last])
    for count in 1, 3:
        with threads(count):
            assert torch.equal(tiles(x), whole)


@compiled
def test_it_is_told_why_there_are_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not torch.float32" in str(QuantisedTiles.refuses(torch.float32))
    assert list(layouts(torch.float32)) == ["panels"]
    monkeypatch.setattr("spsbench.engines.packing.tiles.has_unit", lambda: False)
    assert "no matrix unit" in str(QuantisedTiles.refuses(HALF))
    assert list(layouts(HALF)) == ["panels"]


@compiled
def test_the_faster_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one where they are about equally fast."""
    layer = over_codes("int4", 70, 64)
    monkeypatch.setattr(coded_layouts, "layouts", lambda dtype: LAYOUTS)
    for seconds, expected in (
        ((1.0, 1.0), "tiles"),
        ((1.05, 1.0), "tiles"),
        ((1.2, 1.0), "panels"),
    ):
        monkeypatch.setattr(coded_layouts, "of_one_thread", lambda *given, s=seconds: list(s))
        assert fastest_layout(layer, HALF) == expected


@compiled
@every
def test_a_part_shows_the_speed_of_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = over_codes(name, 200, 64)
    monkeypatch.setattr(coded_layouts, "PART", 1)
    some = part(layer)
    assert torch.equal(some.codes.dense(torch.float32), layer.codes.dense(torch.float32)[:64])
    for kind in layouts(HALF).values():
        assert torch.equal(kind(some).codes.numbers, layer.codes.numbers[:64])


@compiled
def test_a_choice_is_kept_and_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    keeping: dict[str, Any] = {}

    def fastest(layer: QuantisedLinear, dtype: torch.dtype) -> str:
        tried.append(shape_of(layer))
        return "panels"

    monkeypatch.setattr(coded_layouts, "fastest_layout", fastest)
    monkeypatch.setattr(coded_layouts, "recall", keeping.get)
    monkeypatch.setattr(coded_layouts, "keep", keeping.__setitem__)
    monkeypatch.setattr(coded_layouts, "layouts", lambda dtype: LAYOUTS)

    def prepared(known: Choice | None = None) -> Choice:
        model = tiny("llama", vocab=70, dtype=HALF)
        quantise(model, "int4")
        prepare(model, known=known, threads=1)
        choice = choice_of(model)
        assert choice is not None
        return choice

    first = prepared()
    assert set(first.packed.values()) == {"panels"}
    assert len(tried) == len(keeping) == len(first.packed)
    assert prepared() == first
    assert len(tried) == len(first.packed)
    if NO_UNIT is None:
        other = Choice(engine="fast", packed=dict.fromkeys(first.packed, "tiles"))
        assert prepared(other).packed == other.packed
    strange = Choice(engine="fast", packed=dict.fromkeys(first.packed, "onednn"))
    assert prepared(strange).packed == first.packed
