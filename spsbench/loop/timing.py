"""Stopwatches for the parts of the loop."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


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
