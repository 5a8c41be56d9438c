"""Operators in C are those in Python, bit for bit, refuse what does not fit, and can be missing."""

from types import SimpleNamespace

import pytest
import torch

from spsbench.extensions.cpu.kernels import operators
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.operators import NONE, in_c, run
from spsbench.extensions.cpu.packing.panels import PanelLinear
from tests.extensions.cpu.laid_out import forget, random

needs_c = pytest.mark.skipif(in_c("norm") is None, reason="needs operators in C")
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)


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
