"""Stopwatches around the parts of the loop, in the same protocols."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from spsbench.loop.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Scores


class Stopwatch:
    """A sum of the seconds spent inside `running()`.

    On an accelerator a span is timed by events in the work queue, so that timing never blocks: only
    `lap`, which is called after a round's host read, waits for the last event.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._queued: list[tuple[torch.Event, torch.Event]] = []

    def running(self) -> AbstractContextManager[None]:
        """Count the time of the `with` block."""
        return self._on_host() if self._device.type == "cpu" else self._in_queue()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        for began, ended in self._queued:
            ended.synchronize()
            self._seconds += began.elapsed_time(ended) / 1e3
        self._queued.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - began

    @contextmanager
    def _in_queue(self) -> Iterator[None]:
        began = self._event()
        try:
            yield
        finally:
            self._queued.append((began, self._event()))

    def _event(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


class TimedLM:
    """An `LM` whose passes are timed."""

    def __init__(self, lm: LM, watch: Stopwatch) -> None:
        self._lm, self._watch = lm, watch
        self.vocab_size, self.limit = lm.vocab_size, lm.limit

    @property
    def length(self) -> int:
        """Return the number of tokens in the cache."""
        return self._lm.length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed tokens, timed unless this is a prefill, which asks for no logits."""
        if keep == 0:
            return self._lm.append(tokens, keep, parents)
        with self._watch.running():
            return self._lm.append(tokens, keep, parents)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Roll the cache back, timed."""
        with self._watch.running():
            self._lm.commit(length, path)


class TimedDrafter(Drafter):
    """A `Drafter` whose drafting is timed."""

    def __init__(self, drafter: Drafter, watch: Stopwatch) -> None:
        self._drafter, self._watch = drafter, watch
        self.__wrapped__ = drafter  # whose faults are named
        self.tree, self.layers, self.limit = drafter.tree, drafter.layers, drafter.limit

    @property
    def drawn(self) -> Drawn:  # type: ignore[override]
        """Return how the inner drafter draws."""
        return self._drafter.drawn

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._drafter.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        with self._watch.running():
            return self._drafter.draft(context, k, noise, go_on)
