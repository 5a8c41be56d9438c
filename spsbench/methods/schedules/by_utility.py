"""A schedule that tries values of K by the clock: utility, gain over cost, in test and set phases.

For targets whose passes cost more with each drafted token, such as mixtures of experts, where the
tokens of a draft read experts that one token would not (Cascade, arXiv 2506.20675).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spsbench.loop.types import Round, Schedule
from spsbench.methods.schedules.by_history import Fold
from spsbench.plugins import COST, MOST

BACK_OFF = 3  # times that the phase without drafts is doubled, while drafts do not pay
MOST_ROUNDS = 1 << 16


@dataclass(frozen=True)
class Phase:
    """The phase of a text, and what its earlier phases have shown."""

    k: int  # K of the rounds of this phase
    left: int  # rounds to go
    set: bool = False  # K was chosen, and is not on trial
    rounds: int = 0
    tokens: int = 0
    cost: float = 0.0
    plain: float = 0.0  # the cost of a round without a draft
    tried: tuple[tuple[float, int], ...] = ()  # utility and -K of those on trial before
    misses: int = 0  # trials in succession that did not pay

    @property
    def utility(self) -> float:
        """Return tokens a round over its cost in plain rounds; above 1 a draft pays."""
        return self.tokens * self.plain / self.cost if self.cost > 0 else 0.0


@dataclass
class Utility(Schedule):
    """A schedule of the K of most utility, tried in `test` rounds each and set for `hold` rounds.

    A text begins with `test` rounds without a draft, whose seconds are the price of a token. Then
    `start` is tried, and neighbours of the best K until both are known; the best K is set, or 0
    where its utility is not above 1. Then K is tried anew, from the one that was set. Each trial in
    succession that did not pay doubles the rounds before the next, up to 8 times `hold`.

    By default costs are seconds: texts depend on the clock, but their distribution does not.
    With `draft` or `row`, costs in passes of the target of a drafted and of a scored token, they
    depend on the seed alone. No host read.
    """

    ranges: ClassVar = {
        **dict.fromkeys(("test", "hold"), (1, MOST_ROUNDS)),
        **dict.fromkeys(("draft", "row"), COST),
        "most": MOST,
    }

    start: int = 3
    test: int = 4
    hold: int = 32
    draft: float = 0.0
    row: float = 0.0
    most: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start is {self.start}: expected 1 to most, which is {self.most}")
        self._phase: Fold[Phase] = Fold(Phase(0, self.test), self._after)

    @property
    def by_clock(self) -> bool:
        """Return whether measured times decide."""
        return not (self.draft or self.row)

    def k(self, history: Sequence[Round]) -> int:
        return self._phase(history).k

    def _after(self, phase: Phase, turn: Round) -> Phase:
        """Return the phase after a round: the same with its sums, or at its end the next one."""
        cost = turn.seconds if self.by_clock else 1.0 + turn.drafted * (self.draft + self.row)
        phase = replace(
            phase,
            left=phase.left - 1,
            rounds=phase.rounds + 1,
            tokens=phase.tokens + turn.emitted,
            cost=phase.cost + cost,
        )
        if phase.left:
            return phase
        if phase.k and not phase.set:
            return self._tried(phase)
        plain = phase.plain if phase.k else phase.cost / phase.rounds
        return Phase(phase.k or self.start, self.test, plain=plain, misses=phase.misses)

    def _tried(self, phase: Phase) -> Phase:
        """Return the phase after a trial of K: a trial of a neighbour, or the best K or 0 set."""
        tried = (*phase.tried, (phase.utility, -phase.k))
        utility, k = max(tried)[0], -max(tried)[1]
        steps = (1, -1) if utility > 1 else (-1, 1)
        ks_tried = {-negative for _, negative in tried}
        for neighbour in (k + step for step in steps):
            if 1 <= neighbour <= self.most and neighbour not in ks_tried:
                misses = phase.misses
                return Phase(neighbour, self.test, plain=phase.plain, tried=tried, misses=misses)
        if utility > 1:
            return Phase(k, self.hold, True, plain=phase.plain)
        misses = min(phase.misses + 1, BACK_OFF + 1)
        return Phase(0, self.hold << (misses - 1), True, misses=misses)
