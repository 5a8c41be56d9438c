"""The best read of memory that this machine gives: the bound of single-token steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arena.contenders.contender import timed
from spsbench.engines.packing.memory import empty, huge_pages
from spsbench.hardware.bandwidth import read_bandwidth

SIZE = 2**30  # bytes, read by all threads together
PASSES = 3


def reader() -> Callable[[], Any]:
    """A read of `SIZE` bytes in huge pages, as weights lie, by all of torch's threads."""
    return ones().sum


def ones() -> Tensor:
    """`SIZE` bytes of float32."""
    with huge_pages(SIZE):
        return empty((SIZE // 4,), torch.float32).fill_(1)


class Bandwidth:
    """A worker of its own, which gives its gigabyte back after each reading."""

    def read(self, cores: int) -> dict[str, Any]:
        """Bytes per second: the best of several kinds of loop over 1 GiB in huge pages."""
        torch.set_num_threads(cores)
        numbers = ones()
        rows = numbers.view(-1, 2**14)
        loops: dict[str, Callable[[], Any]] = {
            "torch.sum": numbers.sum,
            "torch.max": numbers.max,
            "torch.amax": partial(torch.amax, rows, 1),
        }
        found = {
            name: SIZE / min(timed(loop) for _ in range(PASSES)) for name, loop in loops.items()
        }
        del loops, rows, numbers
        found["numpy.sum"] = read_bandwidth(cores, SIZE // cores)
        return found
