"""Simulated targets and drafts over 5,000 tokens, and the distributions that known defects give.

The pairs are random, with a median total variation between draft and target of 0.22. A defect's
distribution is exact: the sets that an audit looks at are hit with its probabilities.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from spsbench.audit.statistical.betting import BETS, REPEATS, TOP, Evidence, bet_log_factors

VOCAB, PAIRS = 5_000, 200
Row = np.ndarray


def softmax(x: Row) -> Row:
    e = np.exp(x - x.max())
    return e / e.sum()


def normalised(x: Row) -> Row:
    return x / x.sum()


def nucleus(law: Row, top_p: float) -> Row:
    order = np.argsort(-law, kind="stable")
    before = np.concatenate([[0.0], law[order].cumsum()[:-1]])
    kept = np.zeros_like(law)
    kept[order] = np.where(before < top_p, law[order], 0.0)
    return normalised(kept)


def top(law: Row, k: int) -> Row:
    return normalised(np.where(law >= np.sort(law)[-k], law, 0.0))


def recovered(q: Row, p: Row) -> Row:
    rest = np.maximum(q - p, 0.0)
    return normalised(rest) if rest.sum() > 0 else q


def ratio(q: Row, p: Row) -> Row:
    """Chance that each drafted token is kept."""
    return np.minimum(1.0, np.divide(q, p, out=np.full_like(q, np.inf), where=p > 0))


def kept(drawn: Row, keep: Row, rest: Row) -> Row:
    accepted = drawn * keep
    return accepted + (1 - accepted.sum()) * rest


@dataclass(frozen=True)
class Laws:
    """One position: the true distributions q and p, and the logits of q."""

    q: Row
    p: Row
    logits: Row


def laws(seed: int) -> Laws:
    rng = np.random.default_rng([7, seed])
    logits = rng.normal(0, rng.uniform(2.0, 4.0), VOCAB)
    off = rng.normal(0, rng.uniform(0.3, 0.9), VOCAB)
    return Laws(softmax(logits), softmax(logits + off), logits)


Defect = Callable[[Laws], tuple[Row, Row, Row]]
"""Distributions at a position -> what should come out, the alternative's, what comes out."""


def lenient(size: float) -> Defect:
    def law(x: Laws) -> tuple[Row, Row, Row]:
        return x.q, x.p, kept(x.p, ratio(x.q / size, x.p), recovered(x.q, x.p))

    return law


def residual_is_target(x: Laws) -> tuple[Row, Row, Row]:
    return x.q, x.p, kept(x.p, ratio(x.q, x.p), x.q)


def accepts_always(x: Laws) -> tuple[Row, Row, Row]:
    return x.q, x.p, x.p


def raw_nucleus(x: Laws) -> tuple[Row, Row, Row]:
    drawn = nucleus(x.p, 0.95)
    return x.q, drawn, kept(drawn, ratio(x.q, x.p), recovered(x.q, x.p))


def raw_top_k(x: Laws) -> tuple[Row, Row, Row]:
    q, drawn = top(x.q, 50), top(x.p, 50)
    return q, drawn, kept(drawn, ratio(q, x.p), recovered(q, x.p))


def no_top_p(x: Laws) -> tuple[Row, Row, Row]:
    return nucleus(x.q, 0.95), nucleus(x.p, 0.95), x.q


def too_cold(x: Laws) -> tuple[Row, Row, Row]:
    return x.q, x.p, softmax(x.logits / 0.8)


def greedy_draft(x: Laws) -> tuple[Row, Row, Row]:
    drawn = np.zeros_like(x.p)
    drawn[x.p.argmax()] = 1.0
    return x.q, x.p, kept(drawn, ratio(x.q, x.p), recovered(x.q, x.p))


def none(x: Laws) -> tuple[Row, Row, Row]:
    return x.q, x.p, x.q


@dataclass(frozen=True)
class Positions:
    """Of each position: its sets under the target, and how often each pattern of hits occurs."""

    mass: Row  # [P, D]
    pull: Row  # [P]
    patterns: Row  # [P, 8] chance of each combination of draft, argmax, tail


@cache
def positions(defect: Defect) -> Positions:
    mass, pull, patterns = [], [], []
    for seed in range(PAIRS):
        q, p, out = defect(laws(seed))
        draft, likeliest = p > q, np.arange(VOCAB) == q.argmax()
        tail = q < np.sort(q)[-TOP]
        sets = np.stack([draft, likeliest, np.zeros(VOCAB, bool), tail])
        mass.append((sets * q).sum(-1))
        pull.append(((p - q) * draft).sum())
        code = draft * 1 + likeliest * 2 + tail * 4
        patterns.append(np.bincount(code, out, 8))
    return Positions(np.clip(np.array(mass), 0, 1), np.array(pull), np.array(patterns))


def bits(codes: Row) -> Row:
    return np.stack([codes & 1, codes & 2, codes & 0, codes & 4], axis=-1) > 0


def tokens(at: Positions, n: int, rng: np.random.Generator) -> Evidence:
    """`n` tokens of the distribution that comes out, at random positions, in random strata."""
    row = rng.integers(0, len(at.pull), n)
    u = rng.random(n)
    codes = (at.patterns[row].cumsum(-1) < u[:, None]).sum(-1).clip(max=7)
    nothing = np.zeros((REPEATS, n, 4), bool)
    return Evidence(
        bits(codes),
        at.mass[row],
        at.pull[row],
        rng.integers(0, 4, n),
        np.minimum(np.arange(n) // 32, 2),
        nothing,
        nothing,
        np.ones((n, 4, 2), bool),
    )


def capital_after(defect: Defect, n: int, repeats: int, seed: int = 0) -> Row:
    """[R] logarithm of the capital after `n` tokens, in each of `repeats` audits.

    The sum over tokens is one over counts of (position, pattern), so that millions are quick.
    """
    at = positions(defect)
    count = len(at.pull)
    codes = np.tile(np.arange(8), count)
    row = np.repeat(np.arange(count), 8)
    zeros = np.zeros(len(row), np.int64)
    nothing = np.zeros((REPEATS, len(row), 4), bool)
    live = np.ones((len(row), 4, 2), bool)
    steps = bet_log_factors(
        Evidence(bits(codes), at.mass[row], at.pull[row], zeros, zeros, nothing, nothing, live)
    )
    chances = at.patterns.clip(min=0).ravel() / at.patterns.clip(min=0).sum()
    drawn = np.random.default_rng(seed).multinomial(n, chances, repeats)
    logs = drawn @ steps + np.log([bet.share for bet in BETS])
    highest = logs.max(-1, keepdims=True)
    return np.log(np.exp(logs - highest).sum(-1)) + highest[:, 0]
