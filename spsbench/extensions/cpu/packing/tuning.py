"""Measure once how this machine prefetches weights, and keep results of tuning in a small file.

The file stands beside the compiled kernels, under a digest of what it depends on: another
processor, number of cores, kernel or torch measures anew. Without a place nothing is kept.

The panel kernels ask memory for weights before they use them. What is fastest on one processor
costs another up to half of its memory's speed; the numbers are the same in any way.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import folder, load_kernels, missing, processor
from spsbench.extensions.cpu.kernels.steps import PANEL, run_op
from spsbench.extensions.cpu.packing.memory import empty, huge_pages
from spsbench.hardware.environment import usable_cores
from spsbench.hardware.files import write_whole


def recall(name: str) -> Any:
    """Return the value that `keep` stored for this machine; None: there is none."""
    path = tuning_file()
    return None if path is None else _read(path).get(name)


def keep(name: str, value: Any) -> None:
    """Keep a JSON value. Of two processes that do so at once one loses its value."""
    path = tuning_file()
    if path is None:
        return
    with suppress(OSError):  # else it will be measured again
        write_whole(path, json.dumps(_read(path) | {name: value}, indent=1).encode())


def tuning_file() -> Path | None:
    """Return the path of this machine's file; None: there is no folder of this user's alone."""
    where, kernels = folder(), load_kernels()
    if where is None:
        return None
    name = "none" if isinstance(kernels, str) else Path(kernels._name).name
    parts = [processor(), f"{usable_cores()} {name} {torch.__version__}".encode()]
    return where / f"{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        results = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # none yet, or damaged
        return {}
    return results if isinstance(results, dict) else {}


HINTS = ("not", "past", "into", "near")  # as panels.c numbers them


class Prefetch(NamedTuple):
    """A hint, and how many bytes before its use a weight is asked for."""

    hint: str
    ahead: int

    @property
    def name(self) -> str:
        """Return the name for a file."""
        return f"{self.hint} {self.ahead}"

    def __str__(self) -> str:
        if self.hint == "not":
            return "not asked for"
        return f"{self.ahead} bytes ahead, {self.hint} the caches"


USUAL = Prefetch("past", 512)
PREFETCHES = (
    USUAL,
    Prefetch("past", 2048),
    Prefetch("not", 0),
    *(Prefetch("into", ahead) for ahead in (512, 1024, 2048, 4096, 8192)),
    *(Prefetch("near", ahead) for ahead in (4096, 8192)),
)
MARGIN = 1.02  # what is not usual must win by so much
FEW = 5  # rows: a draft of 4 with the pending token
INPUTS = 1024
PIECE = 4 * 2**20  # bytes of weights in one trial
PIECES = 16  # read in turn, so that none is in the caches again
OTHERS = 2**19  # bytes that lie in the caches beside the weights, read again after each product
TRIALS = 7

PRODUCT = "product"  # the kernel of weights in floating point
Multiply = Callable[[Tensor, Tensor, Prefetch], None]
"""Multiply bytes [n] of weights by inputs [rows, INPUTS], on as many threads as torch has."""

_current: dict[tuple[torch.dtype, str], Prefetch] = {}


def prefetch_of(dtype: torch.dtype, name: str = PRODUCT) -> Prefetch:
    """Return how the kernel `name` prefetches now for inputs of `dtype`."""
    return _current.get((dtype, name), USUAL)


def measured_prefetch(
    dtype: torch.dtype,
    name: str = PRODUCT,
    multiply: Multiply | None = None,
    sizes: Sequence[int] = (1, FEW),
) -> Prefetch:
    """Return the fastest way here, kept or measured (0.2 s); the kernel `name` takes it from now.

    Kernels differ: one that does much with each weight gains by what costs others their speed.
    Products of inputs in `dtype` are timed, of as many rows as each of `sizes`, by `multiply`, or
    for None by the product in floating point. `USUAL` is returned without kernels, and unless
    another way wins by 2 %. What is measured is kept in this machine's file.
    """
    at = dtype, name
    if at not in _current:
        key = f"reading {dtype}" if name == PRODUCT else f"reading {dtype} {name}"
        kept_name = recall(key)
        prefetch = next((way for way in PREFETCHES if way.name == kept_name), None)
        if prefetch is None:
            if missing(dtype):
                return USUAL
            seconds = prefetch_seconds(dtype, multiply or _product, sizes)
            best = min(seconds, key=seconds.__getitem__)
            prefetch = best if seconds[best] * MARGIN < seconds[USUAL] else USUAL
            keep(key, prefetch.name)
        _current[at] = prefetch
    return _current[at]


def prefetch_seconds(
    dtype: torch.dtype, multiply: Multiply, sizes: Sequence[int]
) -> dict[Prefetch, float]:
    """Return seconds by prefetch: medians of trials in one thread, summed over `sizes` (rows)."""
    with huge_pages(PIECE * PIECES):
        weights = empty((PIECES, PIECE), torch.uint8).fill_(0)
    others, seconds = torch.ones(OTHERS // 4), dict.fromkeys(PREFETCHES, 0.0)
    turn, threads = 0, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for rows in sizes:
            x = torch.ones(rows, INPUTS, dtype=dtype)
            times: dict[Prefetch, list[float]] = {prefetch: [] for prefetch in PREFETCHES}
            for _ in range(TRIALS):
                for prefetch in PREFETCHES:
                    turn += 1
                    others.sum()
                    began = time.thread_time()
                    multiply(weights[turn % PIECES], x, prefetch)
                    others.sum()
                    times[prefetch].append(time.thread_time() - began)
            for prefetch in PREFETCHES:
                seconds[prefetch] += median(times[prefetch])
    finally:
        torch.set_num_threads(threads)
    return seconds


def _product(weights: Tensor, x: Tensor, prefetch: Prefetch) -> None:
    """Multiply by panels in floating point, on one thread."""
    depth = 4 // x.itemsize
    panels = weights.view(x.dtype).view(-1, x.shape[1] // depth, PANEL, depth)
    run_op(PRODUCT, x, panels, None, len(panels) * PANEL, *prefetch_arguments(prefetch))


def prefetch_arguments(prefetch: Prefetch) -> tuple[int, int]:
    """Return hint and distance as the kernels take them."""
    return HINTS.index(prefetch.hint), prefetch.ahead
