"""Counterexamples: a biased rule's smallest case, in numbers that can be checked by hand.

The case has few tokens, few drafted, the same simple fractions after every text, and one round that
the target alone completes. The output lists every draft, the rule's decisions with their
probabilities, and their sum for the shortest text with a wrong probability.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from spsbench.audit.exact.cases import Case, Outcome
from spsbench.audit.exact.enumeration import EXACT, Proof, prove, total_variation_distance, walks

QP = tuple[tuple[float, ...], tuple[float, ...]]  # q and p, after any text

THIRD, QUARTER = 1 / 3, 1 / 4

SIMPLE: tuple[QP, ...] = (  # in the order of size
    ((THIRD, 2 * THIRD), (2 * THIRD, THIRD)),
    ((0.5, 0.5), (QUARTER, 3 * QUARTER)),
    ((QUARTER, 3 * QUARTER), (0.5, 0.5)),
    ((1.0, 0.0), (0.5, 0.5)),
    ((0.5, QUARTER, QUARTER), (QUARTER, QUARTER, 0.5)),
    ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5)),
    ((QUARTER, QUARTER, 0.5), (0.5, 0.5, 0.0)),
)

DEPTHS = (1, 2, 3)
MAX_DRAFTS_LISTED = 12  # drafts that are listed

Make = Callable[[QP, int], Case]  # the distributions and K -> a case of one round


def smallest(make: Make) -> list[str]:
    """Return lines on the first case of `make` proven wrong, by K, then `SIMPLE`; []: none."""
    for depth in DEPTHS:
        for qp in SIMPLE:
            case = make(qp, depth)
            proof = prove(case)
            if proof.whole and proof.distance > EXACT:
                return list(describe_case(case, proof, qp, depth))
    return []


Rulings = dict[tuple[int, tuple[int, ...]], float]  # number accepted, emitted -> prob. with draft


def describe_case(case: Case, proof: Proof, qp: QP, depth: int) -> Iterator[str]:
    """Yield lines on a wrong case of K = `depth`: q and p, each draft's decisions, a wrong sum."""
    q, p = qp
    yield (
        f"{len(q)} tokens, K = {depth}; after every text q = {format_distribution(q)} and p = "
        f"{format_distribution(p)}; total variation {format_fraction(proof.distance)}"
    )
    drafts = draft_rulings(case)
    for tokens, rulings in sorted(drafts.items())[:MAX_DRAFTS_LISTED]:
        chance = sum(rulings.values())
        lines = (
            f"{'all accepted' if n == len(text) else f'{n} accepted and {list(text)} emitted'} "
            f"with {format_fraction(weight / chance)}"
            for (n, text), weight in sorted(rulings.items())
        )
        yield f"draft {list(tokens)} has probability {format_fraction(chance)}: {', '.join(lines)}"
    if len(drafts) > MAX_DRAFTS_LISTED:
        yield f"and {len(drafts) - MAX_DRAFTS_LISTED} drafts more"
    text, came, expected = wrong_text(proof)
    parts = [
        (tokens, weight * share)
        for tokens, rulings in sorted(drafts.items())
        for (_, emitted), weight in rulings.items()
        if (share := completion_probability(case, emitted, text)) > 0
    ]
    terms = equation([format_fraction(part) for _, part in parts], " + ", format_fraction(came))
    factors = equation([format_fraction(q[x]) for x in text], " x ", format_fraction(expected))
    yield f"so the text begins {list(text)} with {terms}: expected {factors}"


def equation(parts: Sequence[str], sign: str, result: str) -> str:
    """Return `parts` joined by `sign`, and their result; of fewer than two the result alone."""
    return result if len(parts) < 2 else f"{sign.join(parts)} = {result}"


def draft_rulings(case: Case) -> dict[tuple[int, ...], Rulings]:
    """Return drafted tokens -> rulings -> joint probability, in one round, by `without_bonus`."""
    drafts: dict[tuple[int, ...], Rulings] = {}
    for walk in walks(case):
        _, accepted, emitted, tokens = walk.rounds[0]
        rulings = drafts.setdefault(tokens, {})
        rulings[accepted, emitted] = rulings.get((accepted, emitted), 0.0) + walk.weight
    return {tokens: without_bonus(of, len(tokens), case) for tokens, of in drafts.items()}


def without_bonus(rulings: Rulings, n: int, case: Case) -> Rulings:
    """Return `rulings`, those that accept all `n` drafted tokens merged if the bonus follows q.

    Merged ones have emitted the draft alone; the target continues after a round in any case.
    """
    remaining, wholes = dict(rulings), dict[tuple[int, ...], float]()
    for (kept, text), weight in rulings.items():
        if kept == n:
            wholes[text[:-1]] = wholes.get(text[:-1], 0.0) + weight
    for text, total in wholes.items():
        bonus = [rulings.get((n, (*text, x)), 0.0) for x in range(case.vocab)]
        probs = case.q((*case.prompt, *text))
        if all(abs(w - total * q) < EXACT for w, q in zip(bonus, probs, strict=True)):
            for x in range(case.vocab):
                remaining.pop((n, (*text, x)), None)
            remaining[n, text] = total
    return remaining


def completion_probability(case: Case, emitted: Sequence[int], text: Sequence[int]) -> float:
    """Return the probability that `emitted`, as `case.q` alone continues it, begins with `text`."""
    shared = min(len(emitted), len(text))
    if tuple(emitted[:shared]) != tuple(text[:shared]):
        return 0.0
    chance = 1.0
    for i in range(len(emitted), len(text)):
        chance *= case.q((*case.prompt, *text[:i]))[text[i]]
    return chance


def wrong_text(proof: Proof) -> tuple[tuple[int, ...], float, float]:
    """Return the shortest prefix with a wrong probability, its probability, and the correct one.

    Of several the one with the greatest error; (), 1, 1 where all are right.
    """
    came = max(
        proof.low, proof.high, key=lambda side: total_variation_distance(side, proof.expected)
    )
    for length in range(1, 1 + max((len(text) for text, _ in proof.expected), default=0)):
        theirs, right = beginning_probs(came, length), beginning_probs(proof.expected, length)
        apart = {x: abs(theirs.get(x, 0.0) - right.get(x, 0.0)) for x in theirs | right}
        text = max(sorted(apart), key=apart.__getitem__)
        if apart[text] > EXACT:
            return text, theirs.get(text, 0.0), right.get(text, 0.0)
    return (), 1.0, 1.0  # texts are right, stop reasons are not


def counterexample(proof: Proof, prompt: Sequence[int]) -> str:
    """Describe the shortest prefix of a text with a wrong probability; "" if there is none."""
    text, came, expected = wrong_text(proof)
    if not text:
        return ""
    return (
        f"after {list(prompt)} the text begins {list(text)} with probability "
        f"{came:.6g}: expected {expected:.6g}"
    )


def beginning_probs(probs: Mapping[Outcome, float], length: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of the first `length` tokens; a shorter text counts as a whole."""
    sums: dict[tuple[int, ...], float] = {}
    for (text, _), chance in probs.items():
        sums[text[:length]] = sums.get(text[:length], 0.0) + chance
    return sums


def format_fraction(value: float) -> str:
    """Return a simple fraction if `value` is one, else six digits."""
    near = Fraction(value).limit_denominator(2000)
    return str(near) if abs(near - Fraction(value)) < EXACT else f"{value:.6g}"


def format_distribution(probs: Sequence[float]) -> str:
    """Return a distribution as `(1/3, 2/3)`."""
    return f"({', '.join(map(format_fraction, probs))})"
