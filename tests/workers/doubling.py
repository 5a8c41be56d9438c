"""Work without models, and what a driver would write of it."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from spsbench.workers.work import Work


@dataclass(frozen=True)
class Doubling(Work):
    """Doubles numbers; some fail, some end its process, whose id is left in a folder."""

    failing: tuple[int, ...] = ()
    deadly: tuple[int, ...] = ()
    seconds: float = 0.0
    refuses: type[Exception] | None = None
    folder: str = ""

    def prepare(self) -> None:
        if self.refuses:
            raise self.refuses("no model (here): expected one. Fetch it")

    def __call__(self, unit: int) -> int:
        if self.folder:
            Path(self.folder, str(os.getpid())).touch()
        time.sleep(self.seconds)
        if unit in self.failing:
            raise ValueError(f"unit {unit}")
        if unit in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * unit


class Written:
    """Results and failures, by unit."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.failures: dict[int, str] = {}

    def take(self, unit: int, result: int | Exception) -> None:
        assert unit not in self.taken.keys() | self.failures.keys()
        if isinstance(result, Exception):
            self.failures[unit] = repr(result)
        else:
            self.taken[unit] = result

    def check(self, count: int, but: tuple[int, ...] = ()) -> None:
        """Every unit once, but those that failed."""
        assert self.taken == {n: 2 * n for n in range(count) if n not in but}
        assert self.failures == {n: f"ValueError('unit {n}')" for n in but}
