"""Short timings that decide how a model is run; the fastest of several trials counts.

Layouts are compared on one thread by its own processor time, so that other work on the machine
hardly changes a choice. The number of threads is a matter of the machine as it is: wall time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from spsbench.engines.packing import PackedLinear, Slot, stock_product
from spsbench.types import LM

ROWS = (1, 5)  # tokens a pass: a drafted one, and a draft of 4 with the pending token
LEASTS = (4, 1)  # rows that a pass is filled up to
LAYERS = 3  # of one shape
CACHES = 64 * 2**20  # bytes
TRIALS = 5
BUDGET = 0.5  # seconds for one comparison; every way is tried once whatever it takes
MARGIN = 1.1  # a choice that is not the usual one must win by so much


def best_packing(alike: Sequence[Slot], model_bytes: int) -> int | None:
    """`least` of the fastest `PackedLinear` for layers of one shape; None: leave them stock.

    Where packed and stock are equally fast, packed it is. Before each trial as much other memory is
    read as a pass over the model's `model_bytes` would, so that weights come from where they will.
    """
    stock = list(islice(alike, LAYERS))
    packed = [PackedLinear(slot.weight, slot.layer.bias) for slot in stock]
    weight = stock[0].weight
    other = torch.zeros(min(model_bytes, CACHES) // 8, dtype=torch.int64)
    total = [0.0] * (1 + len(LEASTS))
    with threads(1):
        for rows in ROWS:
            x = torch.ones(1, rows, weight.shape[1], dtype=weight.dtype)

            def all_packed(least: int, x: Tensor = x) -> None:
                for layer in packed:
                    layer.least = least
                    layer(x)

            def all_stock(x: Tensor = x) -> None:
                for slot in stock:
                    stock_product(slot, x)

            ways: list[Callable[[], object]] = [all_stock]
            ways += [partial(all_packed, least) for least in LEASTS]
            times = fastest(ways, time.thread_time, other.sum)
            total = [a + b for a, b in zip(total, times, strict=True)]
    best = min(range(len(LEASTS)), key=lambda i: total[1 + i])
    return LEASTS[best] if total[1 + best] < MARGIN * total[0] else None


def best_threads(lm: LM) -> int | None:
    """The number of threads with which passes of `lm` are fastest; None: as many as there are."""
    usual = torch.get_num_threads()
    counts = sorted({usual, max(1, usual // 2), 1}, reverse=True)
    if len(counts) == 1:
        return None
    lm.append(torch.zeros(16, dtype=torch.int64), keep=0)

    def under(count: int) -> Callable[[], None]:
        def trial() -> None:
            with threads(count):
                for rows in ROWS:
                    lm.append(torch.zeros(rows, dtype=torch.int64), keep=rows)
                    lm.commit(16)

        return trial

    for _ in range(2):
        under(usual)()  # first passes trace and check
    times = fastest([under(count) for count in counts], time.perf_counter)
    least = dict(zip(counts, times, strict=True))
    best = min(counts, key=least.__getitem__)
    return best if least[best] * MARGIN < least[usual] else None


def fastest(
    ways: Sequence[Callable[[], object]],
    clock: Callable[[], float],
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """The least seconds of each, tried in turn; `before` each trial something is run untimed."""
    least = [float("inf")] * len(ways)
    began = time.perf_counter()
    for _ in range(TRIALS):
        for index, way in enumerate(ways):
            before()
            start = clock()
            way()
            least[index] = min(least[index], clock() - start)
        if time.perf_counter() - began > BUDGET:
            break
    return least


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` threads inside torch's operators."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
