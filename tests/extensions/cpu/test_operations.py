"""Each operation of a program is that of torch, bit for bit, over views of any kind."""

import copy
from itertools import product

import pytest
import torch
from torch.nn.functional import gelu, relu, silu
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.steps import UncoveredPassError, available, run_op
from spsbench.extensions.cpu.packing.coded_panels import QuantisedPanels
from spsbench.extensions.cpu.packing.panels import PanelLinear
from spsbench.extensions.cpu.replay.fused_modules import Activation, exchange_activations
from tests.extensions.cpu.laid_out import random
from tests.extensions.cpu.programs import computed, recorded

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(not available(), reason="needs a C compiler")]
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)


def heads(x):
    return x.view(*x.shape[:2], 2, -1).transpose(1, 2)


def halves(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def joined(x):
    return x.transpose(1, 2).reshape(1, x.shape[2], -1).contiguous()


CASES = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "a number": lambda x, y: x * 0.3,
    "by a number": lambda x, y: x / 0.3,
    "negative": lambda x, y: -x,
    "a row": lambda x, y: x * y[:, :1] + y[0, 2],
    "a column": lambda x, y: x + y[..., 3:4],
    "itself": lambda x, y: x + x,
    "heads": lambda x, y: joined(heads(x) * heads(y)),
    "heads of a token": lambda x, y: joined(heads(x) + heads(y)[:, :1]),
    "a rotation": lambda x, y: joined(heads(x) * heads(y)[:, :1] + halves(heads(x)) * heads(y)),
    "every other": lambda x, y: torch.cat((x[..., ::2] * y[..., 1::2], x[..., 1::2]), -1),
    "a copy": lambda x, y: x.clone(),
    "pairs": lambda x, y: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * y,
    "parts": lambda x, y: torch.cat(x.chunk(2, -1)[::-1], -1),
}


@dtypes
@pytest.mark.parametrize("case", CASES)
def test_elementwise(case, dtype):
    for width, tokens in product((4, 32, 100), (3, 800)):  # 800 with two threads
        x, y = random(1, tokens, width, dtype=dtype), random(1, tokens, width + 4, dtype=dtype)
        y = y[..., :width].contiguous() if width != 32 else y[..., :width].clone()
        assert torch.equal(computed(CASES[case], x, y), CASES[case](x, y))


ACTED = Activation(SiLUActivation())
FACTORS = {  # what is one operation, of an activation and a product, and what is two or more
    "a factor": (lambda x, y: ACTED(x) * y, 1),
    "by its input": (lambda x, y: ACTED(x) * x, 1),
    "a factor before": (lambda x, y: y * ACTED(x), 2),
    "by itself": (lambda x, y: (made := ACTED(x)) * made, 2),
    "read again": (lambda x, y: (made := ACTED(x)) * y + made, 3),
    "by a row": (lambda x, y: ACTED(x) * y[:, :1], 2),
    "a part": (lambda x, y: ACTED(x)[:, :1] * y[:, :1], 2),
    "of heads": (lambda x, y: joined(heads(ACTED(x)) * heads(y)), 2),
    "a sum": (lambda x, y: ACTED(x) + y, 2),
}


@dtypes
@pytest.mark.parametrize("case", FACTORS)
def test_an_activation_multiplies_by_what_alone_follows(case, dtype):
    function, count = FACTORS[case]
    for width, tokens in product((4, 100), (1, 3, 800)):
        x, y = random(1, tokens, width, dtype=dtype), random(1, tokens, width, dtype=dtype)
        assert torch.equal(computed(function, x, y), function(x, y))
    assert len(recorded(function, x, y).steps) == count


@dtypes
def test_what_is_no_number_stays_none(dtype):
    x = torch.tensor([[[float("nan"), float("inf"), -float("inf"), -0.0] * 5]]).to(dtype)
    for function in CASES["a copy"], CASES["negative"], lambda x, y: x + y:
        assert torch.equal(computed(function, x, x.clone()).isnan(), function(x, x).isnan())
        assert torch.equal(computed(function, x, x.clone()).isinf(), function(x, x).isinf())


def test_what_no_operation_is_like_is_refused():
    x, y = random(1, 2, 8), random(1, 2, 8)
    constant = random(1, 2, 8)
    wrong = (
        lambda x, y: x - y,
        lambda x, y: x.clone().add_(y),
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: x + 1.0,
        lambda x, y: x.bfloat16().float(),
        lambda x, y: y,
        lambda x, y: [x + y],
        lambda x, y: x + constant,
        lambda x, y: x.view(2, 2, 2, 2, 1) + y.view(2, 2, 2, 1, 2),
        lambda x, y: (x.mul_(2), x + y)[1],
        lambda x, y: silu(x),
    )
    for function in wrong:
        with pytest.raises(UncoveredPassError):
            computed(function, x, y)
    with pytest.raises(UncoveredPassError):
        computed(lambda x, y: x + y, x, y.bfloat16())


ACTIVATIONS = {
    torch.nn.SiLU: silu,
    SiLUActivation: silu,
    torch.nn.ReLU: relu,
    GELUActivation: gelu,
    NewGELUActivation: lambda x: gelu(x, approximate="tanh"),
    GELUTanh: lambda x: gelu(x, approximate="tanh"),
}


@dtypes
@pytest.mark.parametrize("kind", ACTIVATIONS, ids=str)
def test_activations(kind, dtype):
    """Near torch's in double, the same numbers in any place, and right at the ends."""
    model = torch.nn.Sequential(kind())
    exchange_activations(model)
    assert isinstance(model[0], Activation)
    x = torch.cat([torch.linspace(-100, 100, 70_001), torch.tensor([0.0, -0.0, 1e-30])]).to(dtype)
    exact = ACTIVATIONS[kind](x.double())
    for count in 1, 2:
        with threads(count):
            found = model(x)
            within = 1e-6 if dtype == torch.float32 else 2**-8
            assert ((found - exact).abs() <= within * exact.abs() + 1e-6).all()
            assert torch.equal(found[7:], model(x[7:]))
            assert torch.equal(found[::2], model(x[::2]))
    ends = torch.tensor([float("inf"), float("nan"), 3e38, -3e38], dtype=dtype)
    assert str(model(ends)[:3]) == str(ends[:3])  # where torch's own GELU in float32 has none
    assert model(ends)[3] == 0
    wide = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.allclose(model(wide), ACTIVATIONS[kind](wide))
    assert type(copy.deepcopy(model)[0]) is kind


@dtypes
def test_rows_of_panels(dtype):
    weight = random(70, 64, dtype=dtype)
    layer = PanelLinear(weight, None)
    for ids in torch.tensor([0, 69, 31, 32, 5, 5]), torch.arange(70).repeat(3), torch.tensor([7]):
        assert torch.equal(layer.rows(ids), weight[ids])
        assert torch.equal(layer.rows(ids.int()), weight[ids])
    for wrong in -1, 96:
        with pytest.raises(IndexError):
            run_op("rows", torch.tensor([3, wrong]), layer.weight)


@dtypes
def test_inputs_that_a_kernel_does_not_read_are_refused(dtype):
    layer, x = PanelLinear(random(40, 8, dtype=dtype), None), random(2, 8, dtype=dtype)
    query, ones = random(1, 2, 5, 16, dtype=dtype), torch.ones(1, 2, 2, 8, dtype=dtype)
    cached = torch.zeros(1, 2, 9, 8, dtype=dtype)
    for name, *arguments in (
        ("product", x[:, :6].contiguous(), layer.weight, None, 40, 0, 0),
        ("product", x.double(), layer.weight, None, 40, 0, 0),
        ("product", x[:, ::2], layer.weight, None, 40, 0, 0),
        ("product", x, layer.weight, None, 65, 0, 0),
        ("product", x, layer.weight, torch.zeros(39, dtype=dtype), 40, 0, 0),
        ("norm", x, torch.ones(6, dtype=dtype), 1e-6, 1),
        ("norm", x.half(), torch.ones(8).half(), 1e-6, 1),
        ("attend", query, query, query, random(1, 1, 5, 4, dtype=dtype), None, 1.0, 0.0),
        ("put", cached, ones, 1),  # more than there are
        ("put", cached, ones, 10),  # beyond the room
        ("put", cached, ones[..., :4], 4),
        ("put", cached, ones[:, :1], 4),
        ("put", cached, ones.half(), 4),
    ):
        with pytest.raises(RuntimeError):
            run_op(name, *arguments)
    assert not cached.any()


def layers_of(kind):
    """Six layers of 64 inputs, over weights or over codes."""
    sizes = 96, 32, 70, 64, 33, 40
    if kind != "panels":
        codes = [Codes.of(random(out, 64), FORMATS[kind]) for out in sizes]
        return [QuantisedPanels(QuantisedLinear(code, random(len(code.numbers)))) for code in codes]
    return [PanelLinear(random(out, 64), random(out)) for out in sizes]


@pytest.mark.parametrize("kind", ["panels", "int8", "int4"])
def test_up_to_three_products_of_the_same_inputs_are_one_step(kind):
    parts = layers_of(kind)
    weights = [x for part in parts for x in part.parameters()]

    def function(x):
        made = [part(x) for part in parts[:3]]
        middle = made[0][..., :64].contiguous()
        return torch.cat([*made, parts[3](middle), parts[4](middle), parts[5](x), parts[0](x)], -1)

    for tokens in 1, 5:
        x = random(1, tokens, 64)
        assert torch.equal(computed(function, x, weights=weights), function(x))
    names = [step.name for step in recorded(function, x, weights=weights).steps]
    assert sum("product" in name for name in names) == 3  # of three, two and two
