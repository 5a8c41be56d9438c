"""What an audit of this length could have seen: the size it may claim, and proof that it sees it.

A bias of X is: tokens that the draft favours come X more often than the target's law says, on the
mean over tokens. It is injected as a tilt, q multiplied by 1 + kappa on the favoured set and
rescaled, so that it is spread over tokens as their variance is. For bets of constant size that is
as hard to see as any other spread of the same mean.
"""

from dataclasses import dataclass, replace

import numpy as np

from spsbench.audit.statistical.betting import (
    BETS,
    LEVEL,
    MAIN,
    NO_BAND,
    Money,
    alarm,
    log_factors,
    total,
)
from spsbench.audit.statistical.evidence import DRAFT, REPEATS, Evidence, Floats

SIMULATIONS = 400
MISSED = 2  # of the simulations, at most: a power of 0.995, for the stated 0.99
CAUGHT = 19  # of the repeats, at least
STEPS = 12  # of the bisection; the result is within 0.1 % of the mean variance


@dataclass(frozen=True, slots=True)
class Control:
    """An injected bias of just the claimed size, in seeded repeats of the same length."""

    bias: float
    caught: int
    repeats: int

    @property
    def passed(self) -> bool:
        """Whether the audit could have seen what it claims."""
        return self.caught >= CAUGHT


def claimable(evidence: Evidence, level: float = LEVEL, band: Floats = NO_BAND) -> float | None:
    """The least bias that an audit of this length catches with probability 0.99; None: none.

    Simulated at the tokens' own laws, with the main bets alone: the others can only help.
    """
    most = tilt_limit(evidence)
    if not len(evidence) or most <= 0:
        return None
    uniforms = np.random.default_rng(0).random((SIMULATIONS, len(evidence)), np.float32)
    pairs = [
        log_factors(BETS[i], evidence.mass[:, DRAFT], evidence.pull, float(band[DRAFT]))
        for i in MAIN
    ]
    hit, miss = (np.stack(side, axis=1) for side in zip(*pairs, strict=True))
    start = miss.sum(0) + np.log([BETS[i].share for i in MAIN])
    edge = (hit - miss).astype(np.float32)

    def seen(kappa: float) -> bool:
        chance = evidence.mass[:, DRAFT] + added(evidence, kappa)
        hits = (uniforms < chance.astype(np.float32)).astype(np.float32)
        money = total(start + (hits @ edge).astype(np.float64))
        return int((money < alarm(level)).sum()) <= MISSED

    if not seen(most):
        return None
    low, high = 0.0, most
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return float(added(evidence, high).mean())


def inject(
    evidence: Evidence, bias: float, level: float = LEVEL, band: Floats = NO_BAND
) -> Control:
    """Whole audits of tokens drawn at the same laws with a bias of `bias`, one a seed."""
    kappa = tilt_of(evidence, bias)
    free = np.maximum(1 - evidence.mass[:, DRAFT], 1e-12)
    chance = added(evidence, kappa) / free  # of a token outside the set to be replaced
    caught = 0
    for repeat in range(REPEATS):
        u = np.random.default_rng([repeat, len(evidence)]).random(len(evidence))
        outside = ~evidence.drawn[repeat][:, DRAFT]
        swap = outside & (u < chance)
        hit = np.where(swap[:, None], evidence.favoured[repeat], evidence.drawn[repeat])
        money = Money(band)
        money.take(replace(evidence, hit=hit))
        caught += money.peak >= alarm(level)
    return Control(bias, caught, REPEATS)


def added(evidence: Evidence, kappa: float) -> Floats:
    """[n] what a tilt of `kappa` adds to the chance of the favoured set."""
    return np.minimum(kappa * evidence.spread, 1 - evidence.mass[:, DRAFT])


def tilt_of(evidence: Evidence, bias: float) -> float:
    """The tilt whose mean effect is `bias`."""
    low, high = 0.0, tilt_limit(evidence)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if added(evidence, middle).mean() < bias else (low, middle)
    return high


def tilt_limit(evidence: Evidence) -> float:
    """The largest tilt worth trying; 0 where no token could be hit or missed."""
    return 8.0 if evidence.spread.sum() > 0 else 0.0
