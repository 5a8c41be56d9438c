"""Products by the matrix unit are torch's, each row by itself; or it is told why there are none."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.extensions.cpu.packing.panels import TileLinear, multiplied, to_panels

HALF = torch.bfloat16
NO_UNIT = missing(HALF) or TileLinear.refuses(torch.zeros(32, 32, dtype=HALF))
unit = pytest.mark.skipif(NO_UNIT is not None, reason=str(NO_UNIT))


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(HALF)


def product(x, panels, bias, out):
    return multiplied("tiles", x, panels, bias, out, 2, 2048)


@unit
@pytest.mark.parametrize("size", [(32, 32), (70, 96), (33, 64), (31, 160), (512, 64)], ids=str)
def test_products_are_those_of_torch(size):
    out, width = size
    weight, bias = random(out, width), random(out)
    panels = to_panels(weight)
    for rows in (*range(1, 36), 48, 77):
        x = random(1, rows, width)
        for added in bias, None:
            exact = linear(x.double(), weight.double(), None if added is None else added.double())
            off = (product(x, panels, added, out).double() - exact).abs().max()
            assert off < 1e-2 * exact.abs().max()


@unit
def test_sums_round_about_as_little_as_torch_s():
    for width in 64, 576, 1280, 2048, 5632:
        weight = random(256, width)
        for rows in 1, 5, 20:
            x = random(1, rows, width)
            exact = linear(x.double(), weight.double())
            ours, theirs = product(x, to_panels(weight), None, 256), linear(x, weight)
            assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


@unit
def test_a_row_is_the_same_number_in_any_pass_on_any_threads():
    panels, x = to_panels(random(100, 96)), random(1, 39, 96)
    every = product(x, panels, None, 100)
    for first in range(39):
        for last in first + 1, min(first + 5, 39), min(first + 17, 39), 39:
            assert torch.equal(product(x[:, first:last], panels, None, 100), every[:, first:last])
    for count in 1, 3:
        with threads(count):
            assert torch.equal(every, product(x, panels, None, 100))
    assert product(x[:, :0], panels, None, 100).shape == (1, 0, 100)


@unit
def test_what_is_no_number_stays_none_and_in_its_row():
    x = random(1, 3, 32)
    x[0, 0, 3], x[0, 1, 3] = math.nan, math.inf
    made = product(x, to_panels(random(40, 32)), None, 40)
    assert made[0, 0].isnan().all()
    assert made[0, 1].isinf().all()
    assert made[0, 2].isfinite().all()


@unit
def test_a_layer_of_tiles_is_a_layer_again():
    stock = nn.Linear(64, 40, dtype=HALF)
    packed = TileLinear(stock.weight.detach(), stock.bias.detach())
    assert torch.equal(deepcopy(packed).weight, stock.weight)
    x = random(3, 64)
    assert torch.allclose(packed(x).float(), stock(x).float(), rtol=0.02, atol=1e-2)
    with pytest.raises(RuntimeError):
        packed(random(3, 32))
