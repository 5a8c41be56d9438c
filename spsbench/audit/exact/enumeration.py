"""Exact output distribution of the shipping `decode`, by enumeration of each uniform's cells.

The code decides by comparing uniforms with thresholds. A `Rule` lists the thresholds (`discovery`
finds those of any verifier), and so cuts each uniform's [0, 1) into cells, given the cells chosen
before. The walk is depth first: one run of the real code for each path, with all widths' product.

The walk verifies that no cell contains more than one decision: each path runs with every uniform
near the lower end of its cell, then near the upper end. Decisions are monotone steps in their
uniform, so equal rounds at both ends prove that nothing changes between. A distribution that is
right at both ends is therefore exact, and a rule with other thresholds is detected.

One round of `sps`, two tokens, K = 1, q = (1/3, 2/3), p = (2/3, 1/3) has five paths:

    draft 0 (2/3), accepted (1/2), bonus 0 (1/3) or 1 (2/3)    0 0: 1/9, 0 1: 2/9
    draft 0 (2/3), rejected (1/2), token 1 from (q - p)+ (1)   1: 1/3
    draft 1 (1/3), accepted (1), bonus 0 (1/3) or 1 (2/3)      1 0: 1/9, 1 1: 2/9

So texts begin with 1 with probability 1/3 + 1/9 + 2/9 = 2/3, which is q of it.
"""

from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Tensor

from spsbench.audit.exact.cases import Case, Facts, Outcome, output_distribution
from spsbench.audit.exact.tables import Distribution
from spsbench.loop.decode import decode
from spsbench.loop.sampling import Warp
from spsbench.loop.types import (
    Context,
    Draft,
    Drafter,
    GoOn,
    Guarantee,
    Limits,
    Noise,
    Purpose,
    Scores,
    Verdict,
    Verifier,
)

NARROW = 1e-12  # a cell this wide is a rounding error
INSIDE = 1e-9  # distance from the ends of a cell

Seen = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Values of a round: numbers of drafted and accepted tokens, emitted and drafted tokens."""


class Walk:
    """One path through the cells of a case: a `NoiseStream` that follows a script of cells."""

    def __init__(
        self, case: Case, q: Distribution, p: Distribution, script: list[int], upper: bool = False
    ) -> None:
        self.case, self.q, self.p, self.script, self.upper = case, q, p, script, upper
        self.text = list(case.prompt)
        self.trail: list[tuple[int, int]] = []  # choice, number of choices
        self.weight = 1.0
        self.boxes: dict[Hashable, tuple[float, float]] = {}  # bounds of each uniform
        self.facts = Facts(q, p, case.prompt)
        self.rounds: list[Seen] = []
        self.outcome: Outcome = ((), "")

    def run(self) -> Self:
        """Generate along the path of `script`, only the first round of a `one_round` case.

        `rounds`, `weight`, `text` and `outcome` (output, finish or "") are the path's; returns it.
        """
        case = self.case
        target = case.session(self.text, True)
        drafter = case.drafter(case.session(self.text, False))
        rounds = decode(
            case.prompt,
            target=target,
            drafter=Watched(drafter, self),
            verifier=cast("Verifier", WatchedVerifier(case.verifier, self)),
            schedule=case.schedule,
            warp=case.package_warp or Warp(**case.warp),
            noise=self,
            limits=Limits(case.tokens, case.eos),
            stop=case.stop,
            constraint=None if case.constraint is None else case.constraint(),
            processors=case.processors,
        )
        finish = ""
        for turn in rounds:
            self.text += turn.tokens
            emitted, drafted = tuple(turn.tokens), self.facts.draft_tokens
            self.rounds.append((turn.drafted, turn.accepted, emitted, drafted))
            finish = turn.finish or ""
            if case.one_round:
                break
        self.outcome = tuple(self.text[len(case.prompt) :]), finish
        return self

    def round(self, index: int) -> "CellNoise":
        """Return the noise of round `index`."""
        self.facts = Facts(self.q, self.p, tuple(self.text))
        return CellNoise(self, index)

    def pick(self, address: Hashable, widths: Sequence[float]) -> tuple[int, float]:
        """Choose a cell of the uniform at `address`; return its index and a number in the cell.

        The next number of `script`, 0 past its end, chooses among the cells that meet the uniform's
        bounds. These shrink to the cell, its share of them multiplies `weight`, and `trail` grows.
        The number is near the cell's lower end, or its upper end if `upper`.
        """
        low, high = self.boxes.get(address, (0.0, 1.0))
        live, edge = [], 0.0
        for index, width in enumerate(widths):
            start, edge = edge, edge + width
            if min(edge, high) - max(start, low) > NARROW:
                live.append((index, max(start, low), min(edge, high)))
        step = len(self.trail)
        choice = min(self.script[step], len(live) - 1) if step < len(self.script) else 0
        self.trail.append((choice, len(live)))
        index, start, end = live[choice]
        self.weight *= (end - start) / (high - low)
        self.boxes[address] = start, end
        if self.upper:
            return index, end - INSIDE
        return index, start + INSIDE if start > 0 else 0.0  # 0 itself: a test may not be `<=`


class CellNoise:
    """The uniforms of one round."""

    def __init__(self, walk: Walk, index: int) -> None:
        self.walk, self.index = walk, index
        self.given: dict[tuple[Purpose, int], float] = {}

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        """Return [n] uniforms, each picked once, in the rule's order; asked again, the same.

        Notes in `walk.facts` the cell picked for each, and its middle.
        """
        walk, rule = self.walk, self.walk.case.rule
        for slot in rule.order(purpose, n):
            if (purpose, slot) not in self.given:
                address = walk.case.address(self.index, len(walk.text), purpose, slot)
                cell, u = walk.pick(address, rule.cells(walk.facts, purpose, slot))
                walk.facts.picked[purpose, slot] = cell
                walk.facts.middle[purpose, slot] = sum(walk.boxes[address]) / 2
                self.given[purpose, slot] = u
        return torch.tensor([self.given[purpose, i] for i in range(n)], dtype=torch.float64)


class Watched(Drafter):
    """Drafter wrapper that shows each draft to the walk and changes nothing."""

    def __init__(self, drafter: Drafter, walk: Walk) -> None:
        self._drafter, self._walk = drafter, walk
        self.__wrapped__ = drafter  # errors name the wrapped drafter
        self.drawn = drafter.drawn
        self.tree, self.layers, self.limit = drafter.tree, drafter.layers, drafter.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._drafter.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Return the drafter's draft, noted in `facts`, with a way to redraft if the rule asks."""
        if self._walk.case.rule.redrafts:
            before = deepcopy((self._drafter, go_on))  # a schedule may count what it was asked

            def redraft(other: Noise) -> Draft:
                drafter, again = deepcopy(before)
                return drafter.draft(context, k, other, again)

            self._walk.facts.redraft = redraft

        draft = replace(self._drafter.draft(context, k, noise, go_on), drawn=self.drawn)
        self._walk.facts.draft = draft
        return draft


class WatchedVerifier:
    """Verifier wrapper that shows the walk how much of the draft a schedule lets it verify."""

    def __init__(self, verifier: Verifier, walk: Walk) -> None:
        self.__wrapped__ = verifier  # errors name the wrapped verifier
        self.guarantee, self.refuses = verifier.guarantee, verifier.refuses
        if walk.case.forced:
            self.guarantee, self.refuses = Guarantee.LOSSY, lambda drawn, tree: None
        self._verifier, self._walk = verifier, walk

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        drafted = self._walk.facts.draft
        if drafted is not None and len(draft.tokens) < len(drafted.offered.tokens):
            self._walk.facts.draft = draft
        return self._verifier(draft, q, noise)


EXACT = 1e-12  # total variation up to which two distributions are equal


@dataclass
class Proof:
    """The enumerated distribution, and statistics of the walk."""

    low: dict[Outcome, float]
    high: dict[Outcome, float]
    expected: dict[Outcome, float]
    constant: bool  # both ends of every cell agree
    mass: float
    paths: int
    emitted: float  # expected tokens of the first round, before the cut
    kinds: set[str]  # round kinds: plain, none, some or all accepted

    @property
    def distance(self) -> float:
        """Return the total variation from the target's distribution, at the worse end."""
        return max(
            total_variation_distance(self.low, self.expected),
            total_variation_distance(self.high, self.expected),
        )

    @property
    def whole(self) -> bool:
        """Return whether the cells were right, so that `distance` is exact."""
        return self.constant and abs(self.mass - 1) < EXACT

    @property
    def exact(self) -> bool:
        """Return whether the distribution is the target's."""
        return self.whole and self.distance < EXACT


def total_variation_distance(a: dict[Outcome, float], b: dict[Outcome, float]) -> float:
    """Return half the sum of the absolute differences of two distributions."""
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2


def walks(case: Case) -> Iterator[Walk]:
    """Yield a finished walk for each path of `case`, uniforms near the lower ends of cells."""
    q, p = case.warped(case.q), case.warped(case.p)
    script: list[int] | None = []
    while script is not None:
        walk = Walk(case, q, p, script).run()
        yield walk
        script = following(walk.trail)


def prove(case: Case) -> Proof:
    """Return the `Proof` over all paths of `case`, at both ends of cells; q completes one round."""
    proof = Proof({}, {}, case.expected(), True, 0.0, 0, 0.0, set())
    for walk in walks(case):
        again = Walk(case, walk.q, walk.p, [choice for choice, _ in walk.trail], upper=True).run()
        proof.low[walk.outcome] = proof.low.get(walk.outcome, 0.0) + walk.weight
        proof.high[again.outcome] = proof.high.get(again.outcome, 0.0) + walk.weight
        proof.constant &= walk.rounds == again.rounds and walk.trail == again.trail
        proof.mass += walk.weight
        proof.paths += 1
        if walk.rounds:
            proof.emitted += walk.weight * (walk.rounds[0][1] + 1)
        for drafted, accepted, _, _ in walk.rounds:
            proof.kinds.add("plain" if not drafted else "all" if accepted == drafted else "some")
            if drafted and not accepted:
                proof.kinds.add("none")
    if case.one_round:
        q = case.warped(case.q)
        proof.low, proof.high = (whole_texts(case, q, side) for side in (proof.low, proof.high))
    return proof


def whole_texts(case: Case, q: Distribution, probs: dict[Outcome, float]) -> dict[Outcome, float]:
    """Return the distribution of texts that start with a round of `probs`, then the target's.

    It is the target's distribution of texts if and only if the round is exact, whatever follows. A
    rule that is exact in one round after any text is exact in all, as each round's noise is fresh.
    """
    texts: dict[Outcome, float] = {}
    for (output, finish), weight in probs.items():
        after = output_distribution(
            q,
            case.prompt + output,
            0 if finish else case.tokens - len(output),
            eos=case.eos,
            limit=case.target_limit,
            stop=lambda continued, begun=output: case.stop((*begun, *continued)),  # type: ignore[misc]
        )
        for (continued, end), chance in after.items():
            text = output + continued, finish or end
            texts[text] = texts.get(text, 0.0) + weight * chance
    return texts


def following(trail: list[tuple[int, int]]) -> list[int] | None:
    """Return the script of the next path, depth first; None after the last."""
    trail = list(trail)
    while trail and trail[-1][0] + 1 == trail[-1][1]:
        trail.pop()
    return [c for c, _ in trail[:-1]] + [trail[-1][0] + 1] if trail else None
