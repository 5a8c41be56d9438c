"""How far work on many machines is; it grows with none of it."""

import time
from collections.abc import Callable

from spsbench.benchmark.pace import rate
from spsbench.distributed.scheduler import Scheduler
from spsbench.hardware.sizes import clock


class ClusterPace:
    """Counts samples, and what became of them.

    Args:
        total: samples to be made.
        now: seconds.
    """

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self.scheduler: Scheduler | None = None
        self._now, self._began = now, now()
        self._first: float | None = None  # when the first came: models were loaded by then

    def add(self, *, failed: bool) -> None:
        """Count one."""
        if self._first is None:
            self._first = self._now()
        self.done += 1
        self.failed += failed

    def __str__(self) -> str:
        """`312/800, 4 workers, 4 pieces at work, 1 worker lost, 3.1 samples/s, 0:04:10 to go`."""
        parts = [f"{self.done}/{self.total}"]
        if self.scheduler is not None:
            parts.append(counted(self.scheduler.workers, "worker"))
            parts.append(f"{counted(self.scheduler.flying, 'piece')} at work")
            if self.scheduler.losses:
                parts.append(f"{counted(self.scheduler.losses, 'worker')} lost")
        if self.failed:
            parts.append(f"{self.failed} failed")
        passed = self._now() - (self._began if self._first is None else self._first)
        if self.done > 1 and passed > 0:
            speed = (self.done - 1) / passed
            parts.append(f"{rate(speed)} samples/s")
            parts.append(f"{clock((self.total - self.done) / speed)} to go")
        return ", ".join(parts)


def counted(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {what}{'s' if number != 1 else ''}"
