"""Operators in C are those in Python, bit for bit, refuse what does not fit, and can be missing."""

from types import SimpleNamespace

import pytest
import torch

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels import operators
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.operators import NONE, in_c, run
from spsbench.extensions.cpu.packing.coded_panels import CODE_LAYOUTS
from spsbench.extensions.cpu.packing.panels import PanelLinear, product
from spsbench.extensions.cpu.replay.attention import kernel_attend
from tests.extensions.cpu.laid_out import forget, random

needs_c = pytest.mark.skipif(in_c("norm") is None, reason="needs operators in C")
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)


@needs_c
@dtypes
@pytest.mark.parametrize("biased", [True, False])
def test_products(biased, dtype):
    bias = random(70, dtype=dtype) if biased else None
    layer = PanelLinear(random(70, 64, dtype=dtype), bias)
    for shape in (64,), (1, 3, 64), (2, 5, 64), (1, 0, 64):
        x = random(*shape, dtype=dtype)
        for count in 1, 2:
            with threads(count):
                assert torch.equal(layer(x), product(x, layer.weight, layer.bias, 70))
    turned = random(64, 3, dtype=dtype).t()
    assert torch.equal(layer(turned), layer(turned.contiguous()))


@needs_c
@dtypes
@pytest.mark.parametrize("name", [*FORMATS, "over minima"])
def test_products_over_codes(name, dtype, monkeypatch):
    codes = Codes.of(random(70, 96, dtype=torch.float32), FORMATS.get(name, FORMATS["int4"]))
    if name not in FORMATS:
        codes = codes._replace(numbers=codes.numbers + 8, minima=codes.scales * 3)
    for kind in [kind for kind in CODE_LAYOUTS.values() if not kind.refuses(dtype)]:
        for bias in None, random(70, dtype=dtype):
            layer = kind(QuantisedLinear(codes, bias))
            inputs = [random(*shape, 96, dtype=dtype) for shape in ((), (1, 3), (2, 9), (1, 0))]
            ours = [layer(x) for x in inputs]
            with monkeypatch.context() as python:
                python.setattr(operators, "in_c", lambda name: None)
                assert all(map(torch.equal, ours, (layer(x) for x in inputs)))
            with pytest.raises(RuntimeError):
                layer(inputs[1][..., :64])


@needs_c
@dtypes
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("tokens", [1, 5])
def test_attention(tokens, sinks, dtype):
    query = random(1, tokens, 6, 32, dtype=dtype).transpose(1, 2)
    key, value = random(2, 1, 3, 40, 32, dtype=dtype)[:, :, :, :23]
    mask = random(1, 1, tokens, 24, dtype=dtype)[..., :23] if tokens > 1 else None
    extra = random(6, dtype=dtype) if sinks else None
    found = run("attend", query, key, value, mask, extra, 0.3, 2.5)
    assert torch.equal(found, kernel_attend(query, key, value, mask, extra, 0.3, 2.5))
    assert found.shape == (1, tokens, 6, 32)


@needs_c
@dtypes
def test_what_does_not_fit_is_refused(dtype):
    layer, x = PanelLinear(random(40, 8, dtype=dtype), None), random(2, 8, dtype=dtype)
    multiply = in_c("product")
    assert multiply is not None
    for wrong in (
        (x[:, :6].contiguous(), layer.weight, NONE, 40),
        (x.double(), layer.weight, NONE, 40),
        (x[:, ::2], layer.weight, NONE, 40),
        (x, layer.weight, NONE, 65),
        (x, layer.weight, torch.zeros(39, dtype=dtype), 40),
    ):
        with pytest.raises(RuntimeError):
            multiply(*wrong, 0, 0)
    norm, tiles, attend = in_c("norm"), in_c("tiles"), in_c("attend")
    assert norm is not None
    assert tiles is not None
    assert attend is not None
    with pytest.raises(RuntimeError):
        norm(x, torch.ones(6, dtype=dtype), 1e-6, 1)
    with pytest.raises(RuntimeError):
        norm(x.half(), torch.ones(8).half(), 1e-6, 1)
    if dtype == torch.float32:
        with pytest.raises(RuntimeError):
            tiles(x, layer.weight, NONE, 40, 0, 0)
    query = random(1, 2, 5, 16, dtype=dtype)
    with pytest.raises(RuntimeError):
        attend(query, query, query, random(1, 1, 5, 4, dtype=dtype), NONE, 1.0, 0.0)


def test_a_file_that_cannot_enlist_leaves_the_work_to_python(monkeypatch):
    layer, x = PanelLinear(torch.ones(32, 4), None), torch.ones(1, 4)
    before, query = layer(x), torch.ones(1, 1, 1, 16)
    with monkeypatch.context() as old:
        other = SimpleNamespace(_name="/none.so", enlist=lambda name: 1)
        old.setattr(operators, "library", lambda: other)
        forget()
        assert in_c("norm") is None
        assert torch.equal(layer(x), before)
        assert run("attend", query, query, query, None, None, 1.0, 0.0).shape == query.shape
    forget()
