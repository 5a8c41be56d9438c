"""How the panel kernel asks memory for weights before it uses them: measured, once on a machine.

What is fastest on one processor costs another up to half of its memory's speed. The numbers that
come out are the same in any way.
"""

import time
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.engines.kernels.native import NoKernelError, kernel
from spsbench.engines.packing.memory import empty, huge_pages
from spsbench.engines.packing.tuning_cache import keep, recall

HINTS = ("not", "past", "into")  # as panels.c numbers them


class Reading(NamedTuple):
    """A hint, and how many bytes before its use a weight is asked for."""

    hint: str
    ahead: int

    @property
    def name(self) -> str:
        """For a file."""
        return f"{self.hint} {self.ahead}"

    def __str__(self) -> str:
        if self.hint == "not":
            return "not asked for"
        return f"{self.ahead} bytes ahead, {self.hint} the caches"


USUAL = Reading("past", 512)
READINGS = (
    USUAL,
    Reading("past", 2048),
    Reading("not", 0),
    *(Reading("into", ahead) for ahead in (512, 1024, 2048, 4096, 8192)),
)
MARGIN = 1.02  # what is not usual must win by so much
ROWS = (1, 5)
INPUTS = 1024
PIECE = 8 * 2**20  # bytes of weights in one trial
PIECES = 12  # read in turn, so that none is in the caches again
OTHERS = 2**19  # bytes that lie in the caches beside the weights, read again after each product
TRIALS = 9

_current: dict[torch.dtype, Reading] = {}


def current(dtype: torch.dtype) -> Reading:
    """How products of `dtype` read now."""
    return _current.get(dtype, USUAL)


def use(dtype: torch.dtype, told: str) -> None:
    """Read as a run did that was begun before, by its name; what is unknown here is passed over."""
    found = [reading for reading in READINGS if reading.name == told]
    if found:
        _current[dtype] = found[0]


def choose(dtype: torch.dtype) -> Reading:
    """The fastest way here, kept or measured (0.3 s), which products of `dtype` take from now on.

    Without kernels it is the usual one.
    """
    if dtype not in _current:
        key = f"reading {dtype}"
        use(dtype, str(recall(key)))
        if dtype not in _current:
            try:
                kernel("product", dtype)
            except NoKernelError:
                return USUAL
            _current[dtype] = fastest(seconds(dtype))
            keep(key, _current[dtype].name)
    return _current[dtype]


def fastest(taken: dict[Reading, float]) -> Reading:
    """Of seconds by way: the least, but the usual one where none wins by `MARGIN`."""
    best = min(taken, key=taken.__getitem__)
    return best if taken[best] * MARGIN < taken[USUAL] else USUAL


def seconds(dtype: torch.dtype) -> dict[Reading, float]:
    """Processor time of one thread for products of one and of five rows, medians of turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _seconds(dtype)
    finally:
        torch.set_num_threads(threads)


def _seconds(dtype: torch.dtype) -> dict[Reading, float]:
    out = PIECE // (INPUTS * dtype.itemsize)
    with huge_pages(PIECE * PIECES):
        weights = empty((PIECES, out, INPUTS), dtype).fill_(0.01)
    others, taken = torch.ones(OTHERS // 4), dict.fromkeys(READINGS, 0.0)
    turn = 0
    for rows in ROWS:
        x, y = torch.ones(rows, INPUTS, dtype=dtype), torch.empty(rows, out, dtype=dtype)
        times: dict[Reading, list[float]] = {reading: [] for reading in READINGS}
        for _ in range(TRIALS):
            for reading in READINGS:
                turn += 1
                others.sum()
                began = time.thread_time()
                _product(reading, weights[turn % PIECES], x, y)
                others.sum()
                times[reading].append(time.thread_time() - began)
        for reading in READINGS:
            taken[reading] += median(times[reading])
    return taken


def _product(reading: Reading, weights: Tensor, x: Tensor, y: Tensor) -> Any:
    """On one thread."""
    out, width = weights.shape
    places = weights.data_ptr(), x.data_ptr(), None, y.data_ptr()
    return kernel("product", x.dtype)(*places, len(x), width, out, *arguments(reading), 1)


def arguments(reading: Reading) -> tuple[int, int]:
    """As the kernel takes them."""
    return HINTS.index(reading.hint), reading.ahead
