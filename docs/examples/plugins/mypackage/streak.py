"""A schedule: K follows the last round."""

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.loop.types import Round, Schedule


@dataclass(frozen=True)
class Streak(Schedule):
    """One more token after a fully accepted draft, else as many as were accepted."""

    least: int = 1
    most: int = 8

    def k(self, history: Sequence[Round]) -> int:
        if not history:
            return self.least
        last = history[-1]
        wanted = last.drafted + 1 if last.accepted == last.drafted else last.accepted
        return max(self.least, min(wanted, self.most))
