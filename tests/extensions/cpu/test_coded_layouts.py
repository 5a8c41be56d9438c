"""Codes by integer dot products: the same weights, selected by rule."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, pad

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear, quantise
from spsbench.engines.session.engine_config import EngineConfig
from spsbench.extensions.cpu.fast import prepare
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.extensions.cpu.packing.coded_panels import (
    QuantisedDots,
    select_code_layouts,
)
from tests.oracles.models import tiny

HALF = torch.bfloat16
NO_DOTS = QuantisedDots.refuses(HALF)
dots = pytest.mark.skipif(NO_DOTS is not None, reason=str(NO_DOTS))
compiled = pytest.mark.skipif(missing(HALF) is not None, reason="needs a C compiler")
every = pytest.mark.parametrize("name", [*FORMATS, "over minima"])


def over_codes(name, out, width):
    generator = torch.Generator().manual_seed(out + width)
    codes = Codes.of(
        torch.randn(out, width, generator=generator), FORMATS.get(name, FORMATS["int4"])
    )
    if name not in FORMATS:
        codes = codes._replace(numbers=codes.numbers + 8, minima=codes.scales * -3.7)
    return QuantisedLinear(codes, torch.randn(out, generator=generator).to(HALF))


def inputs(rows, width):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(HALF)


def in_8_bits(x):
    """Round `x` [n, in] as integer dot products do: 32 inputs of a row by one scale."""
    blocks = pad(x.float(), (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    most = blocks.abs().amax(-1, keepdim=True)
    made = (blocks * (127 / most.clamp(min=1e-30))).round() * (most / 127)
    return made.flatten(1)[:, : x.shape[1]]


@dots
@every
@pytest.mark.parametrize("size", [(32, 32), (70, 100), (33, 192), (31, 6), (64, 1312)], ids=str)
def test_dot_products_are_those_of_inputs_in_8_bits(name, size):
    """Exact but for bfloat16 at the end, and by no more than 1 % off the products of all bits."""
    layer = over_codes(name, *size)
    made, x = QuantisedDots(layer), inputs(17, size[1])
    dense, bias = layer.codes.dense(torch.float64), layer.bias.double()
    rounded = linear(in_8_bits(x).double(), dense, bias)
    exact = linear(x.double(), dense, bias)
    assert (made(x) - rounded).norm() <= 0.003 * rounded.norm()
    assert 0.003 * exact.norm() < (made(x) - exact).norm() <= 0.01 * exact.norm() or size[1] == 6
    assert torch.equal(made.codes.numbers, layer.codes.numbers)
    assert torch.equal(made.codes.scales, layer.codes.scales)


@compiled
def test_dot_products_are_selected_for_inputs_in_bfloat16():
    model = nn.ModuleList([QuantisedLinear(Codes.of(torch.ones(64, 128), FORMATS["int8"]), None)])
    assert set(select_code_layouts(model, torch.float32).values()) == {"panels"}
    expected = "panels" if NO_DOTS else "dots"
    assert set(select_code_layouts(model, HALF).values()) == {expected}


@compiled
def test_a_known_layout_of_codes_is_taken_over():
    def prepared(known=None):
        model = tiny("llama", vocab=70, dtype=HALF)
        quantise(model, "int4")
        return prepare(model, previous=known, threads=1)

    first = prepared()
    for known in "onednn", "panels":
        other = EngineConfig(engine="fast", packed=dict.fromkeys(first.packed, known))
        wanted = first.packed if known == "onednn" else other.packed
        assert prepared(other).packed == wanted
