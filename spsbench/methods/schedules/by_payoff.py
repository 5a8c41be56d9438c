"""A schedule that asks a draft model only while its drafts pay: for a hybrid of a rule and a model.

Costs are numbers of the cell, in passes of the target over one token, and never a clock: the same
seed gives the same tokens. `costs=here` names those of this machine (`methods/round_costs.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from spsbench.loop.types import Round, Schedule
from spsbench.methods.schedules.by_history import (
    AcceptanceSums,
    Fold,
    best_k,
    costs_of_rows,
    outcome,
)
from spsbench.plugins import COST, INSIDE, MOST

PRIOR = 3.0  # tokens
RULE_ALPHA = 0.6  # acceptance of drafts by rule before any was tested
BACK_OFF = 3  # times that the rounds without the model are doubled, while its drafts do not pay
MOST_ROUNDS = 1 << 16


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

    ranges: ClassVar = {
        **dict.fromkeys(("draft", "fixed"), COST),
        **dict.fromkeys(("alpha", "decay"), INSIDE),
        "hold": (1, MOST_ROUNDS),
        "most": MOST,
    }

    costs: str = ""
    draft: float = 0.08
    row: float | str = 0.02
    fixed: float = 0.0
    alpha: float = 0.45
    decay: float = 0.95
    hold: int = 24
    most: int = 6

    def __post_init__(self) -> None:
        self._rows = costs_of_rows(self.row, self.most)
        if self.costs not in ("", "here"):
            raise ValueError(f"costs is {self.costs!r}: expected here, or draft, row and fixed")
        self._costs = [
            1.0 + (self.fixed if k else 0.0) + k * self.draft + rows
            for k, rows in enumerate(self._rows)
        ]
        start = State()
        if not self._best(start.model):
            start = State(wait=self.hold, misses=1)
        self._state: Fold[State] = Fold(start, self._after)

    def k(self, history: Sequence[Round]) -> int:
        state = self._state(history)
        return 0 if state.wait else 1 if state.misses else max(1, self._best(state.model))

    def rule_k(self, history: Sequence[Round]) -> int:
        alpha = self._state(history).rule.alpha(RULE_ALPHA, PRIOR)
        return best_k(alpha, [1.0 + rows for rows in self._rows])

    def _best(self, model: AcceptanceSums) -> int:
        """Return the best K of the model; 0: its drafts do not pay."""
        return best_k(model.alpha(self.alpha, PRIOR), self._costs)

    def _after(self, state: State, turn: Round) -> State:
        """Return the next state; the model's sums change in its rounds alone; unpaid, it waits."""
        counts, nothing = outcome(turn), (0, 0)
        by_model = turn.drafted != 0 and not turn.by_rule
        rule = state.rule.after(counts if turn.by_rule else nothing, self.decay)
        state = state._replace(rule=rule, wait=max(0, state.wait - 1))
        if not by_model:
            return state
        model = state.model.after(counts, self.decay)
        if self._best(model):
            return state._replace(model=model, misses=0)
        hold = self.hold << min(state.misses, BACK_OFF)
        return state._replace(model=model, wait=hold, misses=min(state.misses + 1, BACK_OFF))
