"""Where along a text a schedule would stop that reads the laws of a draft."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spsbench.loop.types import Schedule
from spsbench.plugins import make
from spsbench.settings.cell import Cell


def readers(cells: Sequence[Cell]) -> dict[str, Schedule]:
    """The schedules among those of `cells` whose `go_on` reads the law."""
    named = {str(cell.method.schedule): cell.method.schedule for cell in cells}
    made: dict[str, Schedule] = {name: make("schedules", spec) for name, spec in named.items()}
    return {name: schedule for name, schedule in made.items() if reads(schedule)}


def reads(schedule: Schedule) -> bool:
    """Whether `go_on` looks at the law that it is given."""
    law = Untouched()
    schedule.k(())
    try:
        schedule.go_on(law)  # type: ignore[arg-type]
    except TouchedError:
        return True
    return False


class TouchedError(Exception):
    """Somebody looked."""


class Untouched:
    """Something that cannot be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise TouchedError

    @classmethod
    def __torch_function__(cls, *given: Any, **named: Any) -> Any:
        """Any function of torch."""
        raise TouchedError


def stopped(schedule: Schedule, sure: Tensor, length: int, most: int) -> NDArray[np.uint8]:
    """[L] slots, of `most`, that a schedule lets be drafted from each position along a text.

    Its `k` is asked as in a first round: what it learns from round to round is not in it.
    """
    found = np.zeros(length, np.uint8)
    for at in range(length):
        k = min(schedule.k(()), most)
        ends = min(k, len(sure) - at)
        taken = 0
        while taken < ends and bool(schedule.go_on(sure[at + taken])):
            taken += 1
        found[at] = k if taken == ends else taken
    return found
