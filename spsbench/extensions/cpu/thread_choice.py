"""The number of threads of a model's passes, chosen at load.

A model whose weights are `LARGE` gives every thread enough to do: it gets those that have a
processor of their own. Passes of smaller ones are timed, which takes a fraction of a second, and
the choice is kept for the machine unless others were at work.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch

from spsbench.engines.session.engine_config import EngineConfig, threads
from spsbench.extensions.cpu.packing.tuning import keep, preferred, recall
from spsbench.hardware import contention
from spsbench.loop.types import LM

ROWS = (1, 5)  # tokens a pass: a drafted one, and a draft of 4 with the pending token
LARGE = 128 * 2**20  # bytes of weights
MARGIN = 1.1  # a choice that is not the usual one must win by so much
TURNS, BUDGET = 3, 0.2  # of passes, and seconds for them
TURNS_BESIDE, BUDGET_BESIDE = 9, 0.5  # where others are at work


def with_threads(choice: EngineConfig, lm: LM, weight_bytes: int) -> EngineConfig:
    """Return `choice` with the number of threads that is best here and now.

    Args:
        choice: of the model.
        lm: a session with the model, prepared.
        weight_bytes: what a pass reads.
    """
    others, usual = contention.at_work(), torch.get_num_threads()
    free = contention.threads_left(usual, others, os.cpu_count() or 1, contention.quota())
    if others >= contention.BUSY:
        return replace(choice, threads=best_threads(lm, weight_bytes, free), beside=round(others))
    key = f"threads for {weight_bytes} bytes of {usual}, {free} free"
    count = recall(key)
    if not isinstance(count, int) or not 1 <= count <= usual:
        count = best_threads(lm, weight_bytes, free) or usual
        if count == usual:  # fewer may have won in a bad moment: they are tried again next time
            keep(key, count)
    return replace(choice, threads=None if count == usual else count)


def best_threads(lm: LM, weight_bytes: int, free: int) -> int | None:
    """Return the number of threads with which passes of `lm` are fastest; None: the usual one.

    Args:
        lm: a session with a prepared model.
        weight_bytes: what a pass reads.
        free: threads that have a processor of their own beside what others do.
    """
    usual = torch.get_num_threads()
    free = min(free, usual)
    counts = sorted({usual, free, max(1, usual // 2), 1}, reverse=True)
    if len(counts) == 1:
        return None
    if weight_bytes >= LARGE:
        return None if free == usual else free
    lm.append(torch.zeros(16, dtype=torch.int64), keep=0)

    def under(count: int) -> Callable[[], None]:
        def trial() -> None:
            with threads(count):
                for rows in ROWS:
                    lm.append(torch.zeros(rows, dtype=torch.int64), keep=rows)
                    lm.commit(16)

        return trial

    under(free)()  # the first passes capture layers and check them
    under(free)()
    ways = [under(count) for count in counts]
    measured = fastest(ways) if free == usual else steadiest(ways)
    best = preferred(dict(zip(counts, measured, strict=True)), free, MARGIN)
    return None if best == usual else best


def fastest(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Return the least seconds of each way, tried in turn."""
    return [min(times) for times in _turns(ways, TURNS, BUDGET)]


def steadiest(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each: beside other work the least is a stroke of luck."""
    return [median(times) for times in _turns(ways, TURNS_BESIDE, BUDGET_BESIDE)]


def _turns(ways: Sequence[Callable[[], object]], count: int, budget: float) -> list[list[float]]:
    """Return seconds of each way in each turn, for as many turns as begin within `budget`."""
    every: list[list[float]] = [[] for _ in ways]
    began = time.perf_counter()
    for _ in range(count):
        for way, times in zip(ways, every, strict=True):
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
        if time.perf_counter() - began > budget:
            break
    return every
