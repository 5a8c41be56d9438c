"""A trace computes what the layers do, over whatever weights it is given, without their Python."""

import pytest
import torch
from torch import Tensor, nn

from spsbench.engines.packing.layouts import LAYOUTS, layouts
from spsbench.engines.replay.tracing import over, replayed, tensors

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def layer(seed: int, dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(64, 96, bias=bias, dtype=dtype).requires_grad_(False)


@dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replay_is_what_the_layers_compute(layout: str, bias: bool, dtype: torch.dtype) -> None:
    plain = [layer(seed, dtype, bias) for seed in range(3)]
    if layout not in layouts(plain[0].weight):
        pytest.skip(f"no {layout} here")
    laid = [LAYOUTS[layout](each.weight, each.bias) for each in plain]
    x = torch.linspace(-1, 1, 5 * 64, dtype=dtype).view(1, 5, 64)
    made = replayed(laid, x)()
    assert isinstance(made, tuple)
    for found, each in zip(made, laid, strict=True):
        assert torch.equal(found, each(x))


class Slow(nn.Linear):
    """Counts how often its Python runs."""

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        """As stock."""
        type(self).runs += 1
        return super().forward(x)


def test_the_python_of_a_layer_is_not_run_again() -> None:
    slow = Slow(8, 8).requires_grad_(False)
    again = replayed([slow], torch.ones(1, 8))
    before = Slow.runs
    for _ in range(5):
        again()
    assert Slow.runs == before > 0


def test_weights_are_put_back() -> None:
    first, second = layer(0), layer(1)
    x = torch.ones(1, 64)
    own, other = first(x), second(x)
    with over(first, tensors(second)):
        assert torch.equal(first(x), other)
    assert torch.equal(first(x), own)
    with pytest.raises(RuntimeError), over(first, tensors(second)):
        raise RuntimeError
    assert torch.equal(first(x), own)
