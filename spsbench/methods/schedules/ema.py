"""K from a running acceptance: as deep as a token is still likely enough to be reached and kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_inside, check_most
from spsbench.methods.schedules.folding import RunningAcceptance


@dataclass
class Ema(Schedule):
    """The largest K with alpha ** K >= `least`, at least 1 and at most `most`; no host read.

    alpha is an exponential moving average over the rounds (`RunningAcceptance`), so it does not
    depend on the K that it was seen at, unlike the mean number of kept tokens.
    """

    least: float = 0.3
    decay: float = 0.9
    alpha: float = 0.7
    most: int = 20

    def __post_init__(self) -> None:
        check_most(self.most)
        for name in ("least", "decay", "alpha"):
            check_inside(name, getattr(self, name))
        self._acceptance = RunningAcceptance(self.decay, self.alpha)

    def k(self, history: Sequence[Round]) -> int:
        """From the estimate so far."""
        alpha = self._acceptance(history)
        return max(1, min(self.most, math.floor(math.log(self.least) / math.log(alpha))))
