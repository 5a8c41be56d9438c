"""A table of costs laid over replayed rounds."""

from typing import Protocol

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.costs import PLAIN, Costs, RoundCost
from spsbench.planning.forecast.replay import Law
from spsbench.planning.forecast.traces import Written

STEP = 16  # tokens of context that are taken to cost the same
LEAST = 0.5  # of its parts a round takes at least, whatever was measured
PARTS = len(RoundCost._fields) - 1


class Priced(Protocol):
    """What a price depends on, of a candidate."""

    @property
    def draft(self) -> str:
        """The arm of the table."""

    @property
    def verifier(self) -> str:
        """The rule."""


class Prices:
    """Seconds of rounds by part and turn, each looked up once."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._known: dict[tuple[str, str | None, int, int, int], Floats] = {}
        self._plain: dict[tuple[int, int], Floats] = {}
        self._medians: dict[tuple[str, str | None, int, int, int], float] = {}

    def of_round(
        self, draft: str, verifier: str | None, asked: int, drafted: int, context: int
    ) -> Floats:
        """[parts, turns] of one round."""
        key = draft, verifier, asked, drafted, context // STEP
        if key not in self._known:
            middle = key[-1] * STEP + STEP / 2
            found = self.costs.turns_of(PLAIN, 0, middle)
            if drafted == 0 and asked > 0:  # the draft was asked for in vain
                found[0] = found[0] + self.costs.arm(draft).draft.at(asked, middle)
            elif drafted > 0:
                plain = np.sum(found, 0)
                rule = verifier if verifier in self.costs.rules else None
                found = self.costs.turns_of(draft, asked, middle, drafted=drafted, verifier=rule)
                known = np.sum(found[:-1], 0)
                # as if other parts took less, it would be more than there is to take off
                found[-1] = np.maximum(found[-1], -LEAST * known)
                # a plain round does a part of this one's work: where it takes longer, costs
                # contradict each other (`Costs.contradictions`)
                lacking = np.median(plain) - np.median(known + found[-1])
                found[-1] = found[-1] + max(lacking, 0.0)
            self._known[key] = np.stack(found)
        return self._known[key]

    def seconds(
        self, draft: str, verifier: str | None, asked: int, drafted: int, context: int
    ) -> float:
        """The median over turns of a whole round."""
        key = draft, verifier, asked, drafted, context // STEP
        if key not in self._medians:
            self._medians[key] = float(np.median(self.of_round(*key[:4], context).sum(0)))
        return self._medians[key]

    def of_law(self, candidate: Priced, text: Written, law: Law) -> Floats:
        """[parts, turns] expected for a text."""
        total = np.zeros((PARTS, self.costs.turns))
        for start in law.starts:
            context = text.prompt_tokens + start.position
            given = candidate.draft, candidate.verifier, start.asked, start.drafted, context
            total += start.chance * self.of_round(*given)
        return total

    def of_plain(self, text: Written) -> Floats:
        """[turns] of the same text by ArS."""
        key = text.prompt_tokens, len(text.q)
        if key in self._plain:
            return self._plain[key]
        total = np.zeros(self.costs.turns)
        for position in range(len(text.q)):
            total += self.of_round(PLAIN, None, 0, 0, text.prompt_tokens + position).sum(0)
        self._plain[key] = total
        return total

    def round_of(
        self, candidate: Priced, asked: float, context: float, drafted: float
    ) -> RoundCost:
        """A round of the mean size, part by part."""
        rule = candidate.verifier if candidate.verifier in self.costs.rules else None
        return self.costs.round_seconds(
            candidate.draft, asked, context, drafted=drafted, verifier=rule
        )
