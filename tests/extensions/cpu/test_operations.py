"""Each operation of a program is that of torch, bit for bit, over views of any kind."""

import copy
from itertools import product

import pytest
import torch
from torch.nn.functional import gelu, relu, silu
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.operators import in_c
from spsbench.extensions.cpu.packing.panels import PanelLinear
from spsbench.extensions.cpu.replay.fused_modules import (
    Activation,
    exchange_activations,
)
from spsbench.extensions.cpu.replay.graph_capture import capture
from spsbench.extensions.cpu.replay.layer_program import Program, Weights
from spsbench.extensions.cpu.replay.operations import RefusedError
from spsbench.extensions.cpu.replay.pass_recording import cacheless_inputs
from tests.extensions.cpu.laid_out import random

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(in_c("put") is None, reason="needs operators in C"),
]
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)


def computed(run, *tensors):
    """By a program."""
    given = cacheless_inputs(tensors, [])
    program = Program(given, capture(lambda *every: run(*every[: len(tensors)]), given))
    return program.over(Weights([]), tensors, (), 0)


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
    run, count = FACTORS[case]
    for width, tokens in product((4, 100), (1, 3, 800)):
        x, y = random(1, tokens, width, dtype=dtype), random(1, tokens, width, dtype=dtype)
        assert torch.equal(computed(run, x, y), run(x, y))
    given = cacheless_inputs((x, y), [])
    assert len(capture(lambda *every: run(*every[:2]), given).steps) == count


@dtypes
def test_what_is_no_number_stays_none(dtype):
    x = torch.tensor([[[float("nan"), float("inf"), -float("inf"), -0.0] * 5]]).to(dtype)
    for run in CASES["a copy"], CASES["negative"], lambda x, y: x + y:
        assert torch.equal(computed(run, x, x.clone()).isnan(), run(x, x).isnan())
        assert torch.equal(computed(run, x, x.clone()).isinf(), run(x, x).isinf())


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
    for run in wrong:
        with pytest.raises(RefusedError):
            computed(run, x, y)
    with pytest.raises(RefusedError):
        computed(lambda x, y: x + y, x, x)
    with pytest.raises(RefusedError):
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
    look_up = in_c("rows")
    for wrong in -1, 96:
        with pytest.raises(RuntimeError):
            look_up(torch.tensor([3, wrong]), layer.weight)
