"""Short timings that decide how a model is run.

Layouts are compared on one thread by its own processor time, and by the median of many turns: other
work lengthens some of them, but seldom half, and that of all ways alike. The choice is kept for the
machine. The number of threads is a matter of the machine as it is: wall time, the least of a few,
and where others are at work the median.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from statistics import median

import torch
from torch import Tensor, nn

from spsbench.engines.packing.layouts import layouts
from spsbench.engines.packing.linear_layers import Slot, stock_linear
from spsbench.engines.packing.memory import huge_pages
from spsbench.engines.packing.panels import most_bytes
from spsbench.engines.replay.tracing import replayed
from spsbench.loop.types import LM

ROWS = (1, 5)  # tokens a pass: a drafted one, and a draft of 4 with the pending token
LAYERS = 8  # of one shape, so that starting a replay is little of it
PART = 4 * 2**20  # bytes of a layer
CACHES = 32 * 2**20  # bytes
TRIALS = 3
BUDGET = 0.2  # seconds for one comparison; every way is tried once whatever it takes
TURNS = 15  # of layouts
PATIENCE = 1.0  # seconds for one comparison of them, which is made once on a machine
SLOW = 0.06  # seconds
LONG = 0.5  # seconds
BESIDE = 9  # turns of numbers of threads where others are at work
BUDGET_BESIDE = 1.5  # seconds for them
MARGIN = 1.1  # a choice that is not the usual one must win by so much


def best_layout(alike: Sequence[Slot], model_bytes: int) -> str | None:
    """The fastest of `LAYOUTS` for layers of one shape; None: leave them stock.

    Where two are equally fast it is the earlier in `LAYOUTS`, and packed rather than stock. Before
    each trial as much other memory is read as a pass over the model's `model_bytes` would, so that
    weights come from where they will.
    """
    stock = [part(slot) for slot in islice(alike, LAYERS)]
    with huge_pages(sum(most_bytes(weight) for weight, _ in stock)):
        packed = {
            name: [kind(weight, bias) for weight, bias in stock]
            for name, kind in layouts(stock[0][0]).items()
        }
    usual, *others = of_one_thread(
        [[stock_linear(*each) for each in stock], *packed.values()],
        stock[0][0].shape[1],
        stock[0][0].dtype,
        min(model_bytes, CACHES),
    )
    best: str | None = None
    least = MARGIN**2 * usual
    for name, seconds in zip(packed, others, strict=True):
        if seconds * MARGIN < least:
            best, least = name, seconds
    return best


def of_one_thread(
    ways: Sequence[Sequence[nn.Module]], width: int, dtype: torch.dtype, other: int
) -> list[float]:
    """Typical seconds of each way to multiply `ROWS` of so many inputs, all added up.

    A way is some layers one after another, replayed as in a pass: in Python a small product takes
    half its time. Before each trial `other` bytes are read, so that weights come from where they
    will.
    """
    elsewhere = torch.zeros(other // 8, dtype=torch.int64)
    total = [0.0] * len(ways)
    with threads(1):
        for rows in ROWS:
            x = torch.ones(1, rows, width, dtype=dtype)
            each = [replayed(layers, x) for layers in ways]
            times = typical(each, time.thread_time, elsewhere.sum)
            total = [a + b for a, b in zip(total, times, strict=True)]
    return total


def part(slot: Slot) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of as many rows as show the speed of all."""
    count = max(64, PART // slot.weight[0].nbytes)
    bias = slot.layer.bias
    return slot.weight[:count], None if bias is None else bias[:count]


def best_threads(lm: LM, free: int | None = None) -> int | None:
    """The number of threads with which passes of `lm` are fastest; None: as many as there are.

    Of a model whose two passes take over `SLOW` every thread has enough to do: it is tried only
    where others take processors, and over `LONG` not even there.

    Args:
        lm: a session whose model is prepared.
        free: threads that have a processor of their own beside what others do; None: all.
    """
    usual = torch.get_num_threads()
    free = usual if free is None else min(free, usual)
    counts = sorted({usual, free, max(1, usual // 2), 1}, reverse=True)
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

    under(free)()  # the first passes trace and check
    began = time.perf_counter()
    under(free)()
    took = time.perf_counter() - began
    if took > (SLOW if free == usual else LONG):
        return None if free == usual else free
    ways = [under(count) for count in counts]
    measure = fastest if free == usual else steadiest
    best = preferred(dict(zip(counts, measure(ways, time.perf_counter), strict=True)), free)
    return None if best == usual else best


def preferred(taken: Mapping[int, float], free: int) -> int:
    """Of seconds by number of threads: the least, but `free` where none wins by `MARGIN`."""
    best = min(taken, key=taken.__getitem__)
    return best if taken[best] * MARGIN < taken[free] else free


def fastest(
    ways: Sequence[Callable[[], object]],
    clock: Callable[[], float],
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """The least seconds of each, tried in turn; `before` each trial something is run untimed."""
    return [min(times) for times in _turns(ways, clock, before, TRIALS, BUDGET)]


def steadiest(ways: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """The median seconds of each, tried in turn: beside others the least is a stroke of luck."""
    return [median(times) for times in _turns(ways, clock, lambda: None, BESIDE, BUDGET_BESIDE)]


def typical(
    ways: Sequence[Callable[[], object]],
    clock: Callable[[], float],
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """The median seconds of each, as `fastest`; the first turn, which warms up, does not count."""
    every = _turns(ways, clock, before, TURNS, PATIENCE)
    return [median(times[1:] or times) for times in every]


def _turns(
    ways: Sequence[Callable[[], object]],
    clock: Callable[[], float],
    before: Callable[[], object],
    count: int,
    budget: float,
) -> list[list[float]]:
    """Seconds of each way in each turn, for as many turns as begin within `budget` seconds."""
    every: list[list[float]] = [[] for _ in ways]
    began = time.perf_counter()
    for _ in range(count):
        for way, times in zip(ways, every, strict=True):
            before()
            start = clock()
            way()
            times.append(clock() - start)
        if time.perf_counter() - began > budget:
            break
    return every


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` threads inside torch's operators."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
