"""Stopwatches around the parts of a loop change nothing but the time that is counted."""

import time

import pytest
import torch

from spsbench.loop.timing import Stopwatch

CPU = torch.device("cpu")
NAP = 0.002


def test_a_lap_ends_where_the_next_begins():
    watch = Stopwatch(CPU)
    for _ in range(2):
        with watch.running():
            time.sleep(NAP)
    first = watch.lap()
    assert first >= 2 * NAP
    assert watch.lap() == 0.0


class QueuedEvent:
    """A moment in a queue that is as far as it was when the event was put into it."""

    queue = 0.0
    waits = 0

    def __init__(self, device: torch.device, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream):
        self.at = QueuedEvent.queue

    def synchronize(self):
        QueuedEvent.waits += 1

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


def test_on_a_device_nothing_waits_until_the_lap(monkeypatch):
    monkeypatch.setattr(torch, "Event", QueuedEvent)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: None)
    watch = Stopwatch(torch.device("cuda"))
    for seconds in 1.5, 0.25:
        with watch.running():
            QueuedEvent.queue += seconds
        QueuedEvent.queue += 10  # between the parts
    assert QueuedEvent.waits == 0
    assert watch.lap() == pytest.approx(1.75)
    assert watch.lap() == 0.0
    assert QueuedEvent.waits == 2
