"""Waiting for room: a system that can start no process or thread now may do so in a moment."""

import time
from collections.abc import Callable
from typing import TypeVar

from spsbench.sandbox.levels import BusyError

LONGEST = 30.0  # seconds; a program that took all room is gone after its own limit
FIRST, SLOWEST = 0.01, 1.0  # seconds between two attempts

T = TypeVar("T")


def patiently(start: Callable[[], T]) -> T:
    """Call `start` until there is room for it.

    Raises:
        BusyError: there is none for `LONGEST` seconds.
    """
    until, pause = time.monotonic() + LONGEST, FIRST
    while True:
        try:
            return start()
        except BusyError:
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, SLOWEST)
