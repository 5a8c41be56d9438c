"""Five laws of every kernel over rows, in its own layout and numbers.

It equals the exact result but for rounding, and rounds about as little as torch; a row has the same
bits in any pass and on any threads; a number that is none stays in its row; misfits are refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.activations import GELUTanh, SiLUActivation
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels.native import KINDS, missing
from spsbench.extensions.cpu.packing.coded_panels import QuantisedDots, QuantisedPanels
from spsbench.extensions.cpu.packing.panels import PanelLinear, TileLinear
from spsbench.extensions.cpu.replay.fused_modules import Activation, Norm
from tests.extensions.cpu.laid_out import random

pytestmark = pytest.mark.skipif(missing(torch.float32) is not None, reason="needs a C compiler")
HALF = torch.bfloat16
WITHIN = {torch.float32: 1e-5, HALF: 1e-2}  # of the greatest number
ODD = (32, 2), (70, 50), (33, 128), (31, 6), (512, 64)  # fill no vector, panel or chunk of inputs
EVEN = (32, 32), (70, 96), (33, 64), (31, 160), (512, 64)
CODED = (32, 32), (70, 50), (33, 192), (31, 6), (64, 1312)


@dataclass(frozen=True)
class Kernel:
    """[n, width] -> [n, out]."""

    run: nn.Module
    exact: Callable[[Tensor], Tensor]  # in float64
    stock: Callable[[Tensor], Tensor] | None = None  # torch's, whose rounding is the measure
    spreads: bool = True  # a NaN makes NaN of all outputs of its row


def weights(out, width, dtype, scale=1.0):
    """Of a linear layer; of every other size without a bias."""
    bias = None if out % 2 else (scale * random(out)).to(dtype)
    return (scale * random(out, width)).to(dtype), bias


def of_linear(layer, weight, bias):
    wide = weight.double(), None if bias is None else bias.double()
    return Kernel(layer, lambda x: linear(x.double(), *wide), lambda x: linear(x, weight))


def panels(out, width, dtype, kind=PanelLinear):
    weight, bias = weights(out, width, dtype)
    return of_linear(kind(weight, bias), weight, bias)


def halves(out, width, dtype):
    """Weights in float32 that are numbers of bfloat16, and are held as those."""
    weight, bias = weights(out, width, HALF)
    weight, bias = weight.float(), None if bias is None else bias.float()
    layer = PanelLinear(weight, bias)
    assert layer.weight.nbytes == PanelLinear(weight + 1e-3, bias).weight.nbytes // 2
    return of_linear(layer, weight, bias)


def codes(name, kind):
    def make(out, width, dtype):
        scale = 1e-5 if width == 50 else 1.0  # below the normal numbers of half precision
        weight, bias = weights(out, width, torch.float32, scale)
        of = Codes.of(weight, FORMATS.get(name, FORMATS["int4"]))
        if name not in FORMATS:
            least = (scale * random(*of.scales.shape)).half()
            of = of._replace(numbers=of.numbers + 8, minima=least)
        layer = QuantisedLinear(of, None if bias is None else bias.to(dtype))
        dense = of.dense(torch.float64)
        return of_linear(kind(layer), dense, layer.bias)

    return make


def norm(kind):
    def make(out, width, dtype):
        stock = kind(width, eps=1e-3).to(dtype).requires_grad_(False)
        stock.weight.copy_(random(width))
        double = kind(width, eps=1e-3).double().requires_grad_(False)
        double.load_state_dict(stock.state_dict())
        return Kernel(Norm(stock), lambda x: double(x.double()).double(), stock)

    return make


def activation(kind):
    def make(out, width, dtype):
        return Kernel(Activation(kind()), lambda x: kind()(x.double()), spreads=False)

    return make


LINEAR = {
    "panels": (panels, KINDS, ODD),
    "halves": (halves, [torch.float32], ODD),
    "tiles": (lambda *size: panels(*size, TileLinear), [HALF], EVEN),
}
OVER_CODES = {
    f"{kind.__name__} {name}": (codes(name, kind), dtypes, CODED)
    for kind, dtypes in ((QuantisedPanels, KINDS), (QuantisedDots, [HALF]))
    for name in (*FORMATS, "over minima")
}
OTHERS = {
    "rms norm": (norm(LlamaRMSNorm), KINDS, ODD),
    "rms norm, late": (norm(Olmo2RMSNorm), KINDS, ODD),
    "rms norm, plus": (norm(GemmaRMSNorm), KINDS, ODD),
    "layer norm": (norm(nn.LayerNorm), KINDS, ODD),
    "silu": (activation(SiLUActivation), KINDS, ODD),
    "gelu": (activation(GELUTanh), KINDS, ODD),
}
KERNELS = LINEAR | OVER_CODES | OTHERS


def every(table):
    return pytest.mark.parametrize(
        ("name", "dtype"),
        [(name, dtype) for name, (_, dtypes, _) in table.items() for dtype in dtypes],
        ids=str,
    )


def refusal(name, dtype):
    if name == "tiles":
        return TileLinear.refuses(torch.zeros(32, 32, dtype=dtype))
    return QuantisedDots.refuses(dtype) if "Dots" in name else None


def made(name, dtype, size):
    """The kernel; skips where this processor has none."""
    if (reason := refusal(name, dtype)) is not None:
        pytest.skip(reason)
    return KERNELS[name][0](*size, dtype)


@every(KERNELS)
def test_a_kernel_equals_the_exact_result(processor, name, dtype):
    within = max(WITHIN[dtype], 2e-2 * ("Dots" in name))  # inputs of 8 bits
    for size in KERNELS[name][2]:
        kernel = made(name, dtype, size)
        for rows in (*range(1, 18), 24, 25, 97):
            x = random(rows, size[1]).to(dtype)
            found, exact = kernel.run(x), kernel.exact(x)
            assert found.dtype == dtype
            assert (found.double() - exact).abs().max() <= within * exact.abs().max() + 1e-6


@every(LINEAR)
def test_sums_round_about_as_little_as_those_of_torch(processor, name, dtype):
    """One chain of additions has three to four times torch's error."""
    for width in 64, 576, 768, 1280, 2048, 5632:
        kernel = made(name, dtype, (257, width))  # without a bias
        for rows in 1, 5, 20:
            x = random(rows, width).to(dtype)
            exact = kernel.exact(x)
            ours, theirs = kernel.run(x), kernel.stock(x)
            assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


@every(KERNELS)
def test_a_row_has_the_same_bits_in_any_pass_on_any_threads(processor, name, dtype):
    for size in KERNELS[name][2]:
        kernel, x = made(name, dtype, size), random(205, size[1]).to(dtype)
        whole = kernel.run(x)
        for first in (*range(0, 39, 3), 90, 200):
            for last in first + 1, first + 5, first + 17, 205:
                assert torch.equal(kernel.run(x[first:last]), whole[first:last])
        for count in 1, 3:
            with threads(count):
                assert torch.equal(kernel.run(x), whole)
        assert torch.equal(kernel.run(x.repeat(1, 2)[:, : size[1]]), whole)  # strides
        assert kernel.run(x[:0]).shape == (0, whole.shape[1])


@every(KERNELS)
def test_a_number_that_is_none_stays_in_its_row(processor, name, dtype):
    for size in KERNELS[name][2]:
        kernel, x = made(name, dtype, size), random(4, size[1]).to(dtype)
        whole = kernel.run(x)
        x[0, 1], x[1, 1], x[2, 1] = math.nan, math.inf, -math.inf
        found = kernel.run(x)
        assert found[0].isnan().all() if kernel.spreads else found[0].isnan().any()
        assert not kernel.spreads or not found[1:3].isfinite().all(1).any()
        assert torch.equal(found[3], whole[3])


@every(LINEAR | OVER_CODES)
def test_inputs_that_do_not_fit_are_refused(name, dtype):
    """The kernel would read beyond them."""
    size = KERNELS[name][2][1]
    kernel, x = made(name, dtype, size), random(3, size[1])
    for wrong in (x[:, :-2].to(dtype), random(3, size[1] + 2).to(dtype), x.double()):
        with pytest.raises(RuntimeError):
            kernel.run(wrong)
