"""Short timings that decide how a model is run; the fastest of several trials counts.

Other work on the machine can only slow a trial down, so the least time is the one to compare.
"""

import time
from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from spsbench.engines.packing import PackedLinear, Slot, stock_product
from spsbench.types import LM

ROWS = (1, 5)  # tokens a pass: a drafted one, and a draft of 4 with the pending token
LAYERS = 3  # of one shape: more than one, so that their weights come from memory, not from a cache
TRIALS = 5
MARGIN = 1.1  # a choice that is not the usual one must win by so much


def packing_pays(alike: Sequence[Slot]) -> bool:
    """Whether layers of one shape are faster packed; equally fast counts as yes."""
    stock = list(islice(alike, LAYERS))
    packed = [PackedLinear(slot.weight, slot.layer.bias) for slot in stock]
    weight = stock[0].weight
    total = [0.0, 0.0]
    for rows in ROWS:
        x = torch.ones(1, rows, weight.shape[1], dtype=weight.dtype)

        def all_packed(x: Tensor = x) -> None:
            for layer in packed:
                layer(x)

        def all_stock(x: Tensor = x) -> None:
            for slot in stock:
                stock_product(slot, x)

        total = [a + b for a, b in zip(total, fastest([all_packed, all_stock]), strict=True)]
    return total[0] < MARGIN * total[1]


def best_threads(lm: LM) -> int | None:
    """The number of threads with which passes of `lm` are fastest; None: as many as there are."""
    usual = torch.get_num_threads()
    counts = sorted({usual, max(1, usual // 2), 1}, reverse=True)
    if len(counts) == 1:
        return None
    lm.append(torch.zeros(16, dtype=torch.int64), keep=0)

    def passes() -> None:
        for rows in ROWS:
            lm.append(torch.zeros(rows, dtype=torch.int64), keep=rows)
            lm.commit(16)

    def under(count: int) -> Callable[[], None]:
        def trial() -> None:
            torch.set_num_threads(count)
            passes()

        return trial

    try:
        passes()  # first passes trace and check
        times = dict(zip(counts, fastest([under(count) for count in counts]), strict=True))
    finally:
        torch.set_num_threads(usual)
    best = min(counts, key=times.__getitem__)
    return best if times[best] * MARGIN < times[usual] else None


def fastest(ways: Sequence[Callable[[], object]], trials: int = TRIALS) -> list[float]:
    """The least seconds of each, tried in turn after one unmeasured round."""
    least = [float("inf")] * len(ways)
    for trial in range(trials + 1):
        for index, way in enumerate(ways):
            began = time.perf_counter()
            way()
            if trial:
                least[index] = min(least[index], time.perf_counter() - began)
    return least
