"""Progress of a plan: one bar over all phases, which never goes back."""

import time
from typing import Protocol

from spsbench.hardware.files import clock

PHASES = ("texts", "traces", "costs", "replay", "real rounds")


class Counted(Protocol):
    """Progress of one phase."""

    done: int
    total: int

    def __str__(self) -> str: ...


class PlanProgress:
    """Progress over all phases; each phase is a fifth of the bar, however long the phase takes.

    What is done again (costs that contradict each other, traces of real rounds) is said, and the
    bar waits for it.
    """

    total = 100

    def __init__(self) -> None:
        self.done = 0
        self._phase, self._inner_done, self._again = 0, 0, False
        self._text = PHASES[0]

    def show(self, phase: str, inner: Counted) -> "PlanProgress":
        """Update the progress of a phase."""
        number = max(PHASES.index(phase), self._phase)
        if number > self._phase:
            self._again = False
        elif inner.done < self._inner_done:
            self._again = True
        self._phase, self._inner_done = number, inner.done
        part = inner.done / inner.total if inner.total else 1.0
        self.done = max(self.done, round(100 * (number + part) / len(PHASES)))
        again = ", once more" if self._again else ""
        step = f"{number + 1}/{len(PHASES)} {PHASES[number]}{again}"
        self._text = f"{self.done}% of the plan, {step}: {inner}"
        return self

    def __str__(self) -> str:
        return self._text


class Count:
    """A counter: done, total, and estimated time left."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._began = time.monotonic()

    def at(self, done: int, total: int) -> "Count":
        """Return the counter with new numbers."""
        if done == 0:
            self._began = time.monotonic()
        self.done, self.total = done, total
        return self

    def __str__(self) -> str:
        if not self.done:
            return f"{self.done}/{self.total}"
        left = (time.monotonic() - self._began) / self.done * (self.total - self.done)
        return f"{self.done}/{self.total}, {clock(left)} to go"
