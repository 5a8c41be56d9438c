"""Codes by integer dot products: the same weights, selected by rule."""

import pytest
import torch
from torch import nn

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
