"""Work without models, and what a driver would write of it."""

import os
import signal
import time
from dataclasses import dataclass

from spsbench.workers.work import Work


@dataclass(frozen=True)
class Doubling(Work):
    """Doubles numbers; some fail, some end its process."""

    failing: tuple[int, ...] = ()
    deadly: tuple[int, ...] = ()
    seconds: float = 0.0
    refuses: type[Exception] | None = None

    def prepare(self) -> None:
        if self.refuses:
            raise self.refuses("no model (here): expected one. Fetch it")

    def __call__(self, unit: int) -> int:
        time.sleep(self.seconds)
        if unit in self.failing:
            raise ValueError(f"unit {unit}")
        if unit in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * unit


class Written:
    """Results and failures, by unit."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.given_up: dict[int, str] = {}

    def take(self, unit: int, result: int) -> None:
        self.taken.append((unit, result))

    def give_up(self, unit: int, error: str) -> None:
        assert unit not in self.given_up
        self.given_up[unit] = error

    def check(self, count: int, but: tuple[int, ...] = ()) -> None:
        """Every unit once, but those that were given up."""
        assert sorted(self.taken) == [(n, 2 * n) for n in range(count) if n not in but]
        assert sorted(self.given_up) == sorted(but)
