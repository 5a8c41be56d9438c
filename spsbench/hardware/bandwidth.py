"""The memory bound of ArS: every token reads all weights once (Chen et al. 2023, section 5).

SpS can: the paper's HumanEval run was faster than model size over memory bandwidth.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from spsbench.hardware.environment import usable_cores
from spsbench.hardware.memory import huge_mapping

LARGE = 256 * 2**20  # bytes a thread reads: several times the caches
PASSES = 5


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The bound that memory bandwidth sets for ArS at batch size 1."""

    bytes: int  # of weights read for each token
    bandwidth: float  # bytes per second

    @property
    def token_time_ms(self) -> float:
        """Return the least time per token."""
        return 1e3 * self.bytes / self.bandwidth

    def reached(self, mean_token_time_ms: float) -> float:
        """Return the fraction of the bound's speed; above 1 only with several tokens per pass."""
        return self.token_time_ms / mean_token_time_ms


def read_bandwidth(threads: int | None = None, size: int = LARGE) -> float:
    """Measure the bytes per second that the processors read from memory, in about a second.

    The best of a few passes of every thread over an array of its own, in huge pages, as weights
    lie: other work on the machine can only lower it. It is a lower bound of what the memory can do.
    """
    count = threads or usable_cores()
    arrays = [_ones(size) for _ in range(count)]

    with ThreadPoolExecutor(count) as pool:
        best = math.inf
        for _ in range(PASSES):
            began = time.perf_counter()
            list(pool.map(np.sum, arrays))  # lets other threads run meanwhile
            best = min(best, time.perf_counter() - began)
    return count * arrays[0].nbytes / best


def _ones(size: int) -> np.ndarray:
    """Return `size` bytes of integers, in huge pages where the system has them."""
    array = np.frombuffer(huge_mapping(size), dtype=np.int64)
    array.fill(1)
    return array
