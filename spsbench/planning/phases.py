"""How far a plan is: which part of it, and how far that is."""

import time
from typing import Protocol

from spsbench.hardware.files import clock

PHASES = ("texts", "traces", "costs", "replay", "real rounds")


class Inner(Protocol):
    """What counts itself."""

    done: int
    total: int

    def __str__(self) -> str: ...


class Phases:
    """One bar for all parts; each is a fifth of it, however long it takes."""

    total = 100

    def __init__(self) -> None:
        self.done = 0
        self._told = PHASES[0]

    def show(self, phase: str, inner: Inner) -> "Phases":
        """A part tells how far it is."""
        number = PHASES.index(phase)
        part = inner.done / inner.total if inner.total else 1.0
        self.done = round(100 * (number + part) / len(PHASES))
        self._told = f"{number + 1}/{len(PHASES)} {phase}: {inner}"
        return self

    def __str__(self) -> str:
        return self._told


class Count:
    """So many of so many, and when the rest will be done."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._began = time.monotonic()

    def at(self, done: int, total: int) -> "Count":
        """Further on."""
        if done == 0:
            self._began = time.monotonic()
        self.done, self.total = done, total
        return self

    def __str__(self) -> str:
        if not self.done:
            return f"{self.done}/{self.total}"
        left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
        return f"{self.done}/{self.total}, {clock(left)} to go"
