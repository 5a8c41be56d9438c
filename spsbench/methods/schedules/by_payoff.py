"""A schedule that asks a draft model only while its drafts pay: for a hybrid of a rule and a model.

Costs are numbers of the cell, in passes of the target over one token, and never a clock: the same
seed gives the same tokens. `costs=here` names those of this machine (`methods/round_costs.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from spsbench.loop.types import Round, Schedule
from spsbench.methods.schedules.by_history import Fold, costs_of_rows, outcome
from spsbench.metrics.rates import expected_tokens
from spsbench.plugins import check_inside, check_most, check_positive, check_ranges

PRIOR = 3.0  # tokens
RULE_ALPHA = 0.6  # acceptance of drafts by rule before any was tested
BACK_OFF = 3  # times that the rounds without the model are doubled, while its drafts do not pay
MOST_ROUNDS = 1 << 16


class AcceptanceSums(NamedTuple):
    """Running sums of kept and of tested tokens; later rounds weigh more."""

    kept: float = 0.0
    tested: float = 0.0

    def after(self, counts: tuple[int, int], decay: float) -> "AcceptanceSums":
        """Return the sums after a round."""
        return AcceptanceSums(decay * self.kept + counts[0], decay * self.tested + counts[1])

    def alpha(self, prior: float) -> float:
        """Return the acceptance rate, above 0 and below 1 like the prior."""
        return (PRIOR * prior + self.kept) / (PRIOR + self.tested)


class State(NamedTuple):
    """Sums over the rounds of a text, and the wait for the next trial of its model."""

    model: AcceptanceSums = AcceptanceSums()
    rule: AcceptanceSums = AcceptanceSums()
    wait: int = 0  # rounds to go without the model
    misses: int = 0  # trials in succession that did not pay


@dataclass
class Payoff(Schedule):
    """A schedule of the best K of 0 to `most`, where 0 holds until the model is tried again.

    The model's drafts pay where some K makes more tokens for its cost than plain sampling, at the
    acceptance of the model's own drafts. Where they do not, it is left out for `hold` rounds and
    then tried with one token; each trial in succession that does not pay doubles the rounds before
    the next, up to 8 times `hold`. While they pay, K is the best at that acceptance. A hybrid's
    drafts by rule have a K of their own, at the rule's acceptance: they cost rows alone.

    Args:
        costs: `here`, or empty where `draft`, `row` and `fixed` are given.
        draft, row, fixed: cost of a drafted token, of each further token that the target scores
            (or of 1, 2, ... of them: `costs_of_rows`), and of a round with a draft whatever its
            length.
        alpha: acceptance that is supposed of the model before it has drafted.
        decay: weight of earlier rounds, a round.
    """

    ranges: ClassVar = {"hold": (1, MOST_ROUNDS)}

    costs: str = ""
    draft: float = 0.08
    row: float | str = 0.02
    fixed: float = 0.0
    alpha: float = 0.45
    decay: float = 0.95
    hold: int = 24
    most: int = 6

    def __post_init__(self) -> None:
        check_most(self.most)
        check_ranges(self, hold=self.hold)
        for name in ("draft", "fixed"):
            check_positive(name, getattr(self, name))
        self._rows = costs_of_rows(self.row, self.most)
        for name in ("alpha", "decay"):
            check_inside(name, getattr(self, name))
        if self.costs not in ("", "here"):
            raise ValueError(f"costs is {self.costs!r}: expected here, or draft, row and fixed")
        start = State()
        if not self._pays(start.model):
            start = State(wait=self.hold, misses=1)
        self._state: Fold[State] = Fold(start, self._after)

    def k(self, history: Sequence[Round]) -> int:
        state = self._state(history)
        if state.wait:
            return 0
        return 1 if state.misses else max(1, self._best(state.model.alpha(self.alpha)))

    def rule_k(self, history: Sequence[Round]) -> int:
        return self._best(self._state(history).rule.alpha(RULE_ALPHA), by_rule=True)

    def _best(self, alpha: float, *, by_rule: bool = False) -> int:
        """Return the K of most tokens for its cost; the smaller of two that are equally good."""
        best, chosen = 0.0, 0
        fixed, each = (0.0, 0.0) if by_rule else (self.fixed, self.draft)
        tokens = expected_tokens(alpha, range(len(self._rows))).tolist()
        for k, rows in enumerate(self._rows):
            rate = tokens[k] / (1.0 + (fixed if k else 0.0) + k * each + rows)
            if rate > best:
                best, chosen = rate, k
        return chosen

    def _pays(self, model: AcceptanceSums) -> bool:
        return self._best(model.alpha(self.alpha)) > 0

    def _after(self, state: State, turn: Round) -> State:
        counts, nothing = outcome(turn), (0, 0)
        by_model = turn.drafted != 0 and not turn.by_rule
        waited = max(0, state.wait - 1)
        state = state._replace(
            rule=state.rule.after(counts if turn.by_rule else nothing, self.decay),
            wait=waited,
        )
        if not by_model:
            return state
        model = state.model.after(counts, self.decay)
        if self._pays(model):
            return state._replace(model=model, misses=0)
        hold = self.hold << min(state.misses, BACK_OFF)
        return state._replace(model=model, wait=hold, misses=min(state.misses + 1, BACK_OFF))
