"""Stopwatches for the parts of the loop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """A sum of the seconds spent inside `running()`.

    On an accelerator a span is timed by events in the work queue, so that timing never blocks: only
    `lap`, which is called after a round's host read, waits for the last event.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._queued: list[tuple[torch.Event, torch.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block, also if it raises; a GPU's by events that `lap` reads."""
        queued = self._device.type != "cpu"
        began, event = time.perf_counter(), self._event() if queued else None
        try:
            yield
        finally:
            if event is None:
                self._seconds += time.perf_counter() - began
            else:
                self._queued.append((event, self._event()))

    def lap(self) -> float:
        """Return the seconds counted since the last lap, once a GPU has reached the last event."""
        for began, ended in self._queued:
            ended.synchronize()
            self._seconds += began.elapsed_time(ended) / 1e3
        self._queued.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _event(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event
