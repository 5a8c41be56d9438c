"""The configuration that `prepare` chooses for a model, threads too, kept for its sessions."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from spsbench.errors import DataError
from spsbench.extensions.cpu.packing.tuning import keep, preferred, recall
from spsbench.extensions.cpu.replay.whole_pass import PassReplay
from spsbench.hardware import contention
from spsbench.hardware.files import in_words
from spsbench.loop.types import LM


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Configuration of an engine for a model, kept with a run and reused on resume."""

    engine: str  # fast, or eager where fast cannot be
    reason: str = ""  # why it is eager, or why nothing is packed
    linears: int = 0
    packed: Mapping[str, str] = field(default_factory=dict)  # rows x columns -> layout
    packed_linears: int = 0
    threads: int | None = None  # None: as many as torch uses
    beside: int = 0  # threads of others that were at work when these were chosen
    reading: str = ""  # how weights in panels are prefetched, by `Prefetch.name`
    cache: int = 0  # bytes of a token in the cache; 0 = not known
    row_bits: bool = False  # whether a token's logits have the same bits in a pass of any size

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EngineConfig":
        """Return the inverse of `to_json`.

        Raises:
            DataError: a field is missing or unknown.
        """
        try:
            return cls(**values)
        except TypeError as error:
            raise DataError(
                f"foreign choice of an engine ({error}): expected what `sps` wrote. Delete "
                "engines-*.json in the folder of the run, and it is made anew"
            ) from error

    def of_cache(self, context: int | None) -> str:
        """Return the size of the cache in words; empty where it is not known."""
        if not self.cache:
            return ""
        whole = "" if context is None else f", {in_words(context * self.cache)} at {context}"
        return f"cache {in_words(self.cache)} a token{whole}"

    def __str__(self) -> str:
        if self.engine != "fast":
            return f"{self.engine}: {self.reason}"
        packed = f"{self.packed_linears} of {self.linears} linear layers packed"
        rest = self.linears - self.packed_linears
        unpacked = f"{rest} of a kind that no kernel takes" if rest else ""
        why = f" ({told})" if (told := self.reason or unpacked) else ""
        threads = "" if self.threads is None else f", threads {self.threads}"
        if self.threads is not None and self.beside:
            threads += f" beside {self.beside} at work"
        return f"fast: {packed}{why}{threads}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model's configuration and its captured layers."""

    choice: EngineConfig
    replay: PassReplay | None = None

    @property
    def threads(self) -> int | None:
        """Return the threads of a pass; None: leave them as they are."""
        return self.choice.threads


_PREPARED: WeakKeyDictionary[nn.Module, Prepared] = WeakKeyDictionary()
_PLAIN = Prepared(EngineConfig(engine="fast", reason="not prepared"))


def prepared(model: nn.Module) -> Prepared:
    """Return the configuration and replay of `model`; the plain ones if it is not prepared."""
    return _PREPARED.get(model, _PLAIN)


def engine_config_of(model: nn.Module) -> EngineConfig | None:
    """Return the configuration of `model`; None where it was not prepared."""
    return _PREPARED[model].choice if model in _PREPARED else None


def set_engine_config(
    model: nn.Module, choice: EngineConfig, replay: PassReplay | None = None
) -> EngineConfig:
    """Keep the configuration of `model` for every session over it, and return it."""
    _PREPARED[model] = Prepared(choice, replay)
    return choice


# The number of threads of a model's passes. A model whose weights are `LARGE` gives every thread
# enough to do: it gets those that have a processor of their own. Passes of smaller ones are timed,
# which takes a fraction of a second, and the choice is kept for the machine unless others were at
# work.

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
    found = recall(key)
    if not isinstance(found, int) or not 1 <= found <= usual:
        found = best_threads(lm, weight_bytes, free) or usual
        if found == usual:  # fewer may have won in a bad moment: they are tried again next time
            keep(key, found)
    return replace(choice, threads=None if found == usual else found)


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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with `count` threads inside torch's operators."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
