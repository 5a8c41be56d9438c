"""In which numbers products are computed: bfloat16 where this machine is faster with it."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

ROWS, WIDTH, INNER = 512, 576, 1536
TIMES = 5
FASTER = 0.75  # of the time of float32, or less
FLOAT32, BFLOAT16 = "float32", "bfloat16"


def quicker(device: torch.device) -> str:
    """The numbers that products of a training are computed in: `bfloat16` or `float32`.

    On a CPU it is measured: a product of a layer's size, in processor time of this thread.
    """
    if device.type == "cuda":
        return BFLOAT16
    if device.type != "cpu":
        return FLOAT32
    spent = {name: _seconds(getattr(torch, name)) for name in (FLOAT32, BFLOAT16)}
    return BFLOAT16 if spent[BFLOAT16] < FASTER * spent[FLOAT32] else FLOAT32


@contextmanager
def products(device: torch.device, numbers: str) -> Iterator[None]:
    """A context in which products are computed so; sums of a loss and weights stay float32."""
    with warnings.catch_warnings():
        # a norm of narrow rows by float32 weights is what is meant; it is one kernel less fused
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        with torch.autocast(device.type, torch.bfloat16, enabled=numbers == BFLOAT16):
            yield


@torch.inference_mode()
def _seconds(dtype: torch.dtype) -> float:
    rows, weight = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(INNER, WIDTH, dtype=dtype)
    return min(_timed(rows, weight) for _ in range(TIMES + 1))


def _timed(rows: Tensor, weight: Tensor) -> float:
    began = time.process_time()
    torch.nn.functional.linear(rows, weight)
    return time.process_time() - began
