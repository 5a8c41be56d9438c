"""The joint law of the rows of a batch, by enumeration of all cells of all their uniforms.

Rows run over tables as they run over models, each in its greenlet; the choices of all rows are one
trail. Their joint law must be the product of the laws of each alone: then no text depends on its
neighbours, although what is verified of it may.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

from spsbench.audit.exact.cases import Case, Outcome, warped
from spsbench.audit.exact.enumeration import EXACT, Walk, following, whole_texts
from spsbench.audit.exact.tables import TableLM
from spsbench.loop.batch import DRAFT, TARGET, Batch, BatchedLM, Fed
from spsbench.loop.types import LM, Scores

Joint = dict[tuple[Outcome, ...], float]
"""The outcomes of all rows -> probability."""

Passes = Callable[[Sequence[Fed]], list[Scores]]


def one_by_one(every: Sequence[Fed]) -> list[Scores]:
    """Make the passes of several tables."""
    return [fed.lm.append(*fed[1:]) for fed in every]


class JointTable(TableLM):
    """A table whose passes are made with those of other rows, by `passes`."""

    def __init__(self, *arguments: Any, passes: Passes = one_by_one, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._passes, self._of = passes, more["target"]

    def shares(self, fed: Fed) -> Hashable | None:
        """Return whether the target or the draft is asked; a prefill runs alone."""
        return self._of if fed.keep and len(fed.tokens) else None

    def together(self, every: Sequence[Fed]) -> list[Scores]:
        """Make the passes of all rows."""
        return self._passes(every)


@dataclass
class JointProof:
    """The enumerated law of all rows, and statistics of the walk."""

    law: Joint
    expected: Joint  # the product of the laws of each alone
    constant: bool = True  # both ends of every cell agree
    paths: int = 0
    rounds: float = 0.0  # expected, of all rows

    @property
    def distance(self) -> float:
        """Return the total variation of the law from the product."""
        every = self.law.keys() | self.expected.keys()
        return sum(abs(self.law.get(x, 0.0) - self.expected.get(x, 0.0)) for x in every) / 2

    @property
    def whole(self) -> bool:
        """Return whether the cells were right, so that `distance` is that of the exact law."""
        return self.constant and abs(sum(self.law.values()) - 1) < EXACT


def prove_batch(
    cases: Sequence[Case],
    passes: Mapping[bool, Passes] | None = None,
    batch: Callable[[], Batch] | None = None,
) -> JointProof:
    """Walk all paths of the rows `cases` of a batch.

    Args:
        passes: how those of the target (True) and of the draft are made; default: one by one.
        batch: makes the batch of each path; default: all rows at a time.
    """
    proof = JointProof({}, product_of([case.expected() for case in cases]))
    script: list[int] | None = []
    while script is not None:
        (walks, first, trail), (_, again, trail_again) = (
            walked(cases, script, upper, passes or {}, batch() if batch else Batch(len(cases)))
            for upper in (False, True)
        )
        weight = prod(walk.weight for walk in walks)
        outcome = tuple(output for output, _ in first)
        proof.law[outcome] = proof.law.get(outcome, 0.0) + weight
        proof.rounds += weight * sum(len(rounds) for _, rounds in first)
        proof.constant &= (first, trail) == (again, trail_again)
        proof.paths += 1
        script = following(trail)
    if any(case.one_round for case in cases):
        proof.law = completed(cases, proof.law)
    return proof


def walked(
    cases: Sequence[Case],
    script: list[int],
    upper: bool,
    passes: Mapping[bool, Passes],
    batch: Batch,
) -> tuple[list[Walk], list[Any], list[tuple[int, int]]]:
    """Run one path of all rows; return the walks, what each made, and the choices."""
    trail: list[tuple[int, int]] = []

    def opened(case: Case, text: list[int], target: bool) -> LM:
        law, make = case.q if target else case.p, passes.get(target, one_by_one)
        lm = JointTable(law, case.vocab, text=text, target=target, passes=make)
        return BatchedLM(lm, batch, TARGET if target else DRAFT)

    walks = []
    for case in cases:
        q, p = warped(case.q, **case.warp), warped(case.p, **case.warp)
        walks.append(Walk(replace(case, lm=opened), q, p, script, upper))
        walks[-1].trail = trail
    rows = sorted(batch.run(walk.run for walk in walks))
    return walks, [row.result for row in rows], trail


def product_of(laws: Sequence[Mapping[Outcome, float]]) -> Joint:
    """Return the joint law of independent texts."""
    return {
        tuple(text for text, _ in outcomes): prod(weight for _, weight in outcomes)
        for outcomes in product(*(law.items() for law in laws))
    }


def completed(cases: Sequence[Case], law: Joint) -> Joint:
    """Return the joint law of texts that the target alone goes on with after first rounds."""

    @cache
    def after(row: int, outcome: Outcome) -> dict[Outcome, float]:
        case = cases[row]
        return whole_texts(case, warped(case.q, **case.warp), {outcome: 1.0})

    whole: Joint = {}
    for outcomes, weight in law.items():
        for text, chance in product_of(
            [after(row, outcome) for row, outcome in enumerate(outcomes)]
        ).items():
            whole[text] = whole.get(text, 0.0) + weight * chance
    return whole
