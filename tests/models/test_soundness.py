"""A model is refused for numbers that no training leaves behind, and its norm mostly settles it."""

import pytest
import torch

from spsbench.models import loader


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_norm_settles_what_is_sound_and_nothing_else(dtype: torch.dtype) -> None:
    numbers = torch.linspace(-1, 1, 999).to(dtype)
    assert loader._small(numbers)
    for wrong in float("nan"), float("inf"), -float("inf"), 40000.0:
        flawed = numbers.clone()
        flawed[500] = wrong
        assert not loader._small(flawed)
