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

from dataclasses import dataclass, field

from spsbench.audit.exact.cases import Case
from spsbench.audit.exact.oracle import Outcome, law_of_outputs, warped
from spsbench.audit.exact.tables import Law
from spsbench.audit.exact.walk import Walk

EXACT = 1e-12  # total variation up to which two laws are one


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
    shapes: set[tuple[int, ...]] = field(default_factory=set)  # parents of the drafted trees

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
    walk = again = None
    while script is not None:
        same = max(0, len(script) - 1)  # choices that are those of the path before
        walk = Walk(case, q, p, script, upper=False).after(walk, same)
        outcome, rounds = walk.run()
        choices = [choice for choice, _ in walk.trail]
        again = Walk(case, q, p, choices, upper=True).after(again, same)
        outcome_again, rounds_again = again.run()
        low[outcome] = low.get(outcome, 0.0) + walk.weight
        high[outcome_again] = high.get(outcome_again, 0.0) + walk.weight
        proof.constant &= rounds == rounds_again and walk.trail == again.trail
        proof.mass += walk.weight
        proof.shapes |= walk.shapes
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
