"""Codes by integer dot products: the same weights, selected by rule."""

import pytest
import torch
from torch import nn

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.extensions.cpu.packing.coded_panels import QuantisedDots, pack_codes

HALF = torch.bfloat16
NO_DOTS = QuantisedDots.refuses(HALF)
compiled = pytest.mark.skipif(missing(HALF) is not None, reason="needs a C compiler")


@compiled
def test_dot_products_are_selected_for_inputs_in_bfloat16():
    expected = "panels" if NO_DOTS else "dots"
    for dtype, rounded, layout in (
        (torch.float32, True, "panels"),
        (HALF, True, expected),
        (HALF, False, "panels"),
    ):
        layer = QuantisedLinear(Codes.of(torch.ones(64, 128), FORMATS["int8"]), None)
        packed = pack_codes(nn.ModuleList([layer]), dtype, rounded=rounded)
        assert packed == [("64x128 int8", layout)]
