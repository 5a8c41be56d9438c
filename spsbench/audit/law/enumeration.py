"""The exact law of the shipping `decode`, by visiting every cell of every uniform.

Whatever the code decides, it decides by comparing uniforms with thresholds. A `Rule` says where
these lie (`thresholds` for the rules we know, `discovery` for any other), and so cuts each
uniform's [0, 1) into cells, given the cells chosen before. The walk is depth first: one run of the
real code for each path, weighted by the product of the widths.

That a cell is no wider than one decision is not believed but shown: each path is run with every
uniform near the lower end of its cell, then near the upper end. Decisions are monotone steps in
their uniform, so equal rounds at both ends prove that nothing changes between. Thus a law that
comes out right at both ends is the law, and a rule whose thresholds are elsewhere is found out.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spsbench.audit.law.oracle import Outcome, law_of_outputs, warped
from spsbench.audit.law.tables import Law, Pair, TableLM
from spsbench.audit.law.thresholds import RULES, Facts, Rule
from spsbench.loop.decode import decode, never
from spsbench.loop.sampling import Warp
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    GoOn,
    Limits,
    Noise,
    Purpose,
    Schedule,
    Scores,
    Stop,
    Verifier,
)
from spsbench.methods.drafters.model import ModelDrafter
from spsbench.methods.schedules.constant import Constant

NARROW = 1e-12  # a cell this wide is a rounding error
INSIDE = 1e-9  # how near to the ends of a cell
EXACT = 1e-12  # total variation up to which two laws are one

Address = Callable[[int, int, Purpose, int], Hashable]
"""(round, length of the text, purpose, slot) -> the uniform's identity. Equal = the same number."""

Seen = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""A round as it is compared: drafted, accepted, emitted tokens, drafted tokens."""


def fresh(index: int, length: int, purpose: Purpose, slot: int) -> Hashable:
    """Every draw has a uniform of its own."""
    return index, purpose, slot


@dataclass
class Case:
    """One generation whose law is wanted. The laws `q` and `p` are given before the warp."""

    verifier: Verifier
    rule: Rule
    q: Law
    p: Law
    vocab: int
    tokens: int = 3
    schedule: Schedule = field(default_factory=lambda: Constant(2))
    drafter: Callable[[LM], Drafter] = ModelDrafter
    warp: dict[str, Any] = field(default_factory=dict)
    package_warp: Callable[[Tensor], Tensor] | None = None  # in place of `Warp(**warp)`
    prompt: tuple[int, ...] = (0,)
    eos: frozenset[int] = frozenset()
    stop: Stop = never
    target_limit: int | None = None
    draft_limit: int | None = None
    address: Address = fresh
    one_round: bool = False  # walk the first round alone; see `whole_texts`
    lm: Callable[["Case", list[int], bool], LM] | None = None

    def session(self, text: list[int], target: bool) -> LM:
        """A model over the table of the target or of the draft; `text` checks what it is fed."""
        if self.lm is not None:
            return self.lm(self, text, target)
        limit = self.target_limit if target else self.draft_limit
        law = self.q if target else self.p
        return TableLM(law, self.vocab, limit=limit, text=text, target=target)

    def expected(self) -> dict[Outcome, float]:
        """The law of the target alone."""
        return law_of_outputs(
            warped(self.q, **self.warp),
            self.prompt,
            self.tokens,
            eos=self.eos,
            limit=self.target_limit,
            stop=self.stop,
        )


def case(name: str, verifier: Verifier, pair: Pair, **fields: Any) -> Case:
    """A case of the pair's two tables under the rule called `name`."""
    return Case(verifier, RULES[name](), pair.q, pair.p, pair.vocab, **fields)


@dataclass
class Proof:
    """The law that came out, and what else was seen on the way."""

    low: dict[Outcome, float]
    high: dict[Outcome, float]
    expected: dict[Outcome, float]
    constant: bool  # were both ends of every cell alike?
    mass: float
    paths: int
    emitted: float  # expected tokens of the first round, before the cut
    kinds: set[str]  # of rounds: plain, none, some or all accepted

    @property
    def distance(self) -> float:
        """Total variation from the target's law, at the worse end."""
        return max(
            total_variation(self.low, self.expected), total_variation(self.high, self.expected)
        )

    @property
    def whole(self) -> bool:
        """Whether the cells were right, so that `distance` is that of the law itself."""
        return self.constant and abs(self.mass - 1) < EXACT

    @property
    def exact(self) -> bool:
        """Whether the law is the target's."""
        return self.whole and self.distance < EXACT


def total_variation(a: dict[Outcome, float], b: dict[Outcome, float]) -> float:
    """Half the sum of the differences of two laws."""
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2


def prove(case: Case) -> Proof:
    """Walk all paths of `case`."""
    q, p = warped(case.q, **case.warp), warped(case.p, **case.warp)
    low: dict[Outcome, float] = {}
    high: dict[Outcome, float] = {}
    proof = Proof(low, high, case.expected(), True, 0.0, 0, 0.0, set())
    script: list[int] | None = []
    while script is not None:
        walk = Walk(case, q, p, script, upper=False)
        outcome, rounds = walk.run()
        again = Walk(case, q, p, [choice for choice, _ in walk.trail], upper=True)
        outcome_again, rounds_again = again.run()
        low[outcome] = low.get(outcome, 0.0) + walk.weight
        high[outcome_again] = high.get(outcome_again, 0.0) + walk.weight
        proof.constant &= rounds == rounds_again and walk.trail == again.trail
        proof.mass += walk.weight
        proof.paths += 1
        if rounds:
            proof.emitted += walk.weight * (rounds[0][1] + 1)
        for drafted, accepted, _, _ in rounds:
            proof.kinds.add("plain" if not drafted else "all" if accepted == drafted else "some")
            if drafted and not accepted:
                proof.kinds.add("none")
        script = following(walk.trail)
    if case.one_round:
        proof.low, proof.high = whole_texts(case, q, low), whole_texts(case, q, high)
    return proof


def whole_texts(case: Case, q: Law, law: dict[Outcome, float]) -> dict[Outcome, float]:
    """The law of the texts that begin with a round of law `law` and go on as the target alone.

    It is the target's law of texts if and only if the round is exact, whatever follows it. A rule
    that is exact in one round after any text is so in all, since the noise of each round is fresh.
    """
    texts: dict[Outcome, float] = {}
    for (output, finish), weight in law.items():
        left = 0 if finish else case.tokens - len(output)
        after = law_of_outputs(
            q,
            case.prompt + output,
            left,
            eos=case.eos,
            limit=case.target_limit,
            stop=lambda rest, begun=output: case.stop((*begun, *rest)),  # type: ignore[misc]
        )
        for (rest, end), chance in after.items():
            text = output + rest, finish or end
            texts[text] = texts.get(text, 0.0) + weight * chance
    return texts


def following(trail: list[tuple[int, int]]) -> list[int] | None:
    """The script of the next path, depth first; None after the last."""
    trail = list(trail)
    while trail and trail[-1][0] + 1 == trail[-1][1]:
        trail.pop()
    return [c for c, _ in trail[:-1]] + [trail[-1][0] + 1] if trail else None


class Walk:
    """One path: a `NoiseStream` whose uniforms follow a script of cells."""

    def __init__(self, case: Case, q: Law, p: Law, script: list[int], upper: bool) -> None:
        self.case, self.q, self.p, self.script, self.upper = case, q, p, script, upper
        self.text = list(case.prompt)
        self.trail: list[tuple[int, int]] = []  # choice, number of choices
        self.weight = 1.0
        self.boxes: dict[Hashable, tuple[float, float]] = {}  # what is known of each uniform
        self.facts = Facts(q, p, case.prompt)

    def run(self) -> tuple[Outcome, list[Seen]]:
        """The output of the path, and its rounds."""
        case = self.case
        drafter = case.drafter(case.session(self.text, False))
        rounds = decode(
            case.prompt,
            target=case.session(self.text, True),
            drafter=Watched(drafter, self),
            verifier=case.verifier,
            schedule=case.schedule,
            warp=case.package_warp or Warp(**case.warp),
            noise=self,
            limits=Limits(case.tokens, case.eos),
            stop=case.stop,
        )
        seen: list[Seen] = []
        finish = ""
        for turn in rounds:
            self.text += turn.tokens
            seen.append((turn.drafted, turn.accepted, tuple(turn.tokens), self.facts.draft_tokens))
            finish = turn.finish or ""
            if case.one_round:
                break
        return (tuple(self.text[len(case.prompt) :]), finish), seen

    def round(self, index: int) -> "CellNoise":
        """The noise of round `index`."""
        self.facts = Facts(self.q, self.p, tuple(self.text))
        return CellNoise(self, index)

    def pick(self, address: Hashable, widths: Sequence[float]) -> tuple[int, float]:
        """Choose a cell of the uniform at `address`: its index, and a number in it."""
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
        """[n] numbers in the cells that the path has chosen."""
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
    """A drafter whose drafts the walk gets to see; nothing else is changed."""

    def __init__(self, drafter: Drafter, walk: Walk) -> None:
        self._drafter, self._walk = drafter, walk
        self.__wrapped__ = drafter  # whose faults are named
        self.drawn = drafter.drawn
        self.tree, self.layers, self.limit = drafter.tree, drafter.layers, drafter.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """As it is."""
        self._drafter.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """As it is, and noted."""
        draft = self._drafter.draft(context, k, noise, go_on)
        self._walk.facts.draft = replace(draft, drawn=self.drawn)  # as the loop hands it on
        return draft
