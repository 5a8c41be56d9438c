"""Parts that multiply the same inputs do so at once, in any layout, with the same numbers."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from spsbench.engines.quantization.codes import FORMATS, Codes
from spsbench.engines.quantization.layers import QuantisedLinear
from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.kernels.operators import in_c
from spsbench.extensions.cpu.packing.coded_panels import CODE_LAYOUTS
from spsbench.extensions.cpu.packing.layouts import layouts
from spsbench.extensions.cpu.packing.panels import PanelLinear
from spsbench.extensions.cpu.replay import merged_products
from spsbench.extensions.cpu.replay.graph_capture import CaptureCache
from spsbench.extensions.cpu.replay.merged_products import merged
from spsbench.extensions.cpu.replay.operations import RefusedError
from tests.extensions.cpu.laid_out import random

pytestmark = pytest.mark.numeric

needs_c = pytest.mark.skipif(in_c("put") is None, reason="needs operators in C")
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=str)


class Layer(nn.Module):
    """Three over the same inputs, one over what the first gives, and two over the same again."""

    def __init__(self, parts: list[Any], twice: bool = False) -> None:
        super().__init__()
        self.parts, self.twice = nn.ModuleList(parts), twice

    def forward(self, x):
        """The outputs of all."""
        a, b, c, d, e, f = self.parts
        made = [a(x), b(x), c(x)]
        middle = made[0][..., :64].contiguous()
        return [*made, d(middle), e(middle), f(x), *([a(x)] if self.twice else [])]


def parts_of(make):
    return [make(out) for out in (96, 32, 70, 64, 33, 40)]


def makers(dtype):
    """For each layout: a layer of so many outputs over 64 inputs."""

    def of_weights(kind):
        return lambda out: kind(random(out, 64, dtype=dtype), random(out, dtype=dtype))

    def of_codes(kind, name):
        return lambda out: kind(
            QuantisedLinear(Codes.of(random(out, 64), FORMATS[name]), random(out, dtype=dtype))
        )

    found = {
        name: of_weights(kind)
        for name, kind in layouts(torch.zeros(64, 64, dtype=dtype)).items()
        if issubclass(kind, PanelLinear)
    }
    return found | {
        f"{name} over {codes}": of_codes(kind, codes)
        for name, kind in [
            (name, kind) for name, kind in CODE_LAYOUTS.items() if not kind.refuses(dtype)
        ]
        for codes in FORMATS
    }


@needs_c
@dtypes
def test_the_numbers_are_the_same(dtype):
    for name, make in makers(dtype).items():
        layer = Layer(parts_of(make))
        for shape in (1, 5, 64), (2, 3, 64), (64,):
            x = random(*shape, dtype=dtype)
            alone = layer(x)
            with merged(layer, partial(layer, x)):
                assert all(map(torch.equal, layer(x), alone)), name
            assert all(map(torch.equal, layer(x), alone))


@needs_c
def test_only_what_is_called_once_with_the_same_inputs_is_merged():
    make = makers(torch.float32)["panels"]
    x = random(3, 64)
    layer = Layer(parts_of(make), twice=True)  # the first is called twice, so it is left alone
    assert [len(g) for g in merged_products.of_same_inputs(layer, lambda: layer(x))] == [2]
    layer = Layer(parts_of(make))
    groups = merged_products.of_same_inputs(layer, lambda: layer(x))
    assert [[part.out_features for part in group] for group in groups] == [[96, 32, 70], [64, 33]]
    other = random(64)
    with merged(layer, lambda: layer(x)):  # a part that now gets other inputs multiplies those
        layer.parts[0](x)
        assert torch.equal(layer.parts[1](other), make(32)(other))
    mixed = Layer([PanelLinear(random(8, 64), None), *(nn.Linear(64, 64) for _ in range(5))])
    assert merged_products.of_same_inputs(mixed, lambda: mixed(x)) == []


@needs_c
def test_a_cache_that_does_not_fit_is_not_written():
    put = in_c("put")
    room, span = torch.zeros(1, 2, 9, 8), torch.empty(4)
    for keys, length in (
        (torch.ones(1, 2, 5, 8), 4),  # more than there are
        (torch.ones(1, 2, 2, 8), 10),  # beyond the room
        (torch.ones(1, 2, 2, 4), 4),
        (torch.ones(1, 1, 2, 8), 4),
        (torch.ones(1, 2, 2, 8).bfloat16(), 4),
    ):
        with pytest.raises(RuntimeError):
            put(room, room, keys, keys, torch.empty(length), span[:1])
    assert not room.any()
    wide = torch.ones(1, 2, 2, 8, dtype=torch.float64)
    rooms = torch.zeros(2, 1, 2, 9, 8, dtype=torch.float64)
    with pytest.raises(RefusedError):
        CaptureCache(span, span, *rooms).update(wide, wide)
    assert not rooms.any()
