"""The K of most tokens a second, from what rounds cost here and how many tokens are being kept.

A round of K tokens emits (1 - alpha^(K + 1)) / (1 - alpha) on the mean (Leviathan et al. 2023,
equation 1) and costs K draft passes and one target pass over K + 1 tokens. Going from K to K + 1
pays where the tokens it adds, by the seconds it adds, beat the average so far; where costs are
convex that rule ends at the greatest quotient, which is what is taken here (the goodput of
SmartSpec, arXiv 2406.14066, for one sequence). K = 0 is among the choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spsbench.loop.types import Round, Schedule
from spsbench.methods.checks import check_inside, check_most, check_positive
from spsbench.methods.schedules.folding import RunningAcceptance
from spsbench.planning.forecast.costs import PLAIN
from spsbench.planning.forecast.costs_file import read_costs


@dataclass
class Goodput(Schedule):
    """The best K of 0 to `most` at the running acceptance; no host read.

    Costs are in passes of the target over one token: `draft` of a draft token, `row` of each
    further token that the target scores, `fixed` of a round with a draft whatever its length; or
    those of a table that was measured (`costs=FILE`), of its `arm` (a drafter's name, needed where
    it has several) at a `context`. While K is 0 nothing is learned, and the estimate drifts back
    to `alpha`: then it is tried again.
    """

    costs: str = ""
    arm: str = ""
    context: int = 256
    draft: float = 0.25
    row: float = 0.03
    fixed: float = 0.0
    decay: float = 0.9
    alpha: float = 0.7
    most: int = 20

    def __post_init__(self) -> None:
        check_most(self.most)
        for name in ("context", "draft", "row", "fixed"):
            check_positive(name, getattr(self, name))
        for name in ("decay", "alpha"):
            check_inside(name, getattr(self, name))
        self._acceptance = RunningAcceptance(self.decay, self.alpha)
        self._costs = self._measured() if self.costs else self._given()

    def k(self, history: Sequence[Round]) -> int:
        """From the estimate so far; the smaller of two that are equally good."""
        alpha, tokens, best, chosen = self._acceptance(history), 0.0, 0.0, 0
        for k, cost in enumerate(self._costs):  # of a round of each K
            tokens += alpha**k
            if tokens / cost > best:
                best, chosen = tokens / cost, k
        return chosen

    def _given(self) -> list[float]:
        each = self.draft + self.row
        return [1.0, *(1.0 + self.fixed + k * each for k in range(1, self.most + 1))]

    def _measured(self) -> list[float]:
        table = read_costs(Path(self.costs).expanduser())
        arms = [name for name in table.arms if name != PLAIN]
        if self.arm not in arms and (self.arm or len(arms) != 1):
            raise ValueError(
                f"arm is {self.arm!r}: expected one of {', '.join(arms) or 'none'}, the drafters "
                f"in {self.costs}"
            )
        asked = [(PLAIN, 0), *((self.arm or arms[0], k) for k in range(1, self.most + 1))]
        return [table.round_seconds(name, k, self.context).total.value for name, k in asked]
