"""The e-process: capital of bets against the target's distribution that are fair under the null.

A bet of `lam` on a set multiplies the stake by 1 + lam (hit - mass). If tokens follow q, the
expected factor is 1 whatever the past, so the capital is a nonnegative martingale. By Ville's
inequality the capital ever reaches 1 / level with probability at most `level`: the audit may stop
at any time (Shafer 2021; Ramdas et al. 2023). The initial capital is divided among many bets:
sizes, signs, directions and strata. Their sum is one such martingale, so that the number of bets
costs power, never validity: the level holds for the whole audit. A bet of 0.4 on sets of mass 1/2,
1/2, 1/5, of which the first two are hit, has 1.2, 1.44, 1.3248 after each token: 1 + 0.4 (1 - 1/2)
twice, then 1 + 0.4 (0 - 1/5). The controls follow: the least detectable bias, injected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Whole = NDArray[np.int64]

DIRECTIONS = ("draft", "argmax", "eos", "tail")  # what a fault favours; q's argmax; EOS; unlikely
DRAFT, ARGMAX, EOS, TAIL = range(len(DIRECTIONS))
TOP = 50  # number of q's likeliest tokens, which are outside the tail

INDEX_STRATA = ("1st of its round", "2nd", "3rd", "4th or later")
LENGTH_STRATA = ("tokens 1-16", "17-64", "from 65")
LENGTH_ENDS = (16, 64)
REPEATS = 20  # seeded repeats of the injected control


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hits and probabilities of n tokens in the order of emission.

    Strata are known before the token is drawn: its position in the round (a round that continues
    has accepted all tokens before it, whatever comes next), and the length of the text. Acceptance
    of the token itself is no stratum, because it depends on the draw.
    """

    hit: Bits  # [n, D] whether the token is in the set
    mass: Floats  # [n, D] q of the set
    pull: Floats  # [n] p of the draft direction's set, less q of it
    index: Whole  # [n] stratum by place in the round
    length: Whole  # [n] stratum by place in the text
    drawn: Bits  # [R, n, D] of seeded draws from q itself
    favoured: Bits  # [R, n, D] of seeded draws from q within the draft direction's set
    live: Bits  # [n, D, 2] whether a bet on "too often", or "too rarely", is resolved

    def __len__(self) -> int:
        return len(self.pull)

    @property
    def spread(self) -> Floats:
        """Return [n] the variance of a hit in the draft direction."""
        mass = self.mass[:, DRAFT]
        return mass * (1 - mass)

    @classmethod
    def joined(cls, parts: Sequence["Evidence"]) -> "Evidence":
        """Concatenate the tokens of evidence in order; without parts there are none."""
        if not parts:
            return no_evidence()
        along = {"drawn": 1, "favoured": 1}
        return cls(
            **{
                f.name: np.concatenate([getattr(e, f.name) for e in parts], along.get(f.name, 0))
                for f in fields(cls)
            }
        )


def no_evidence() -> Evidence:
    """Return the evidence of no tokens."""
    d = len(DIRECTIONS)
    return Evidence(
        np.zeros((0, d), np.bool_),
        np.zeros((0, d)),
        np.zeros(0),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros((REPEATS, 0, d), np.bool_),
        np.zeros((REPEATS, 0, d), np.bool_),
        np.zeros((0, d, 2), np.bool_),
    )


def index_strata(emitted: Sequence[int]) -> Whole:
    """Return [n] the index stratum of each token, from the number of tokens of each round."""
    inside = [np.arange(count) for count in emitted]
    place = np.concatenate(inside) if inside else np.zeros(0)
    return np.minimum(place, len(INDEX_STRATA) - 1).astype(np.int64)


def lengths(n: int) -> Whole:
    """Return [n] the length stratum of each token of a text."""
    return np.searchsorted(LENGTH_ENDS, np.arange(n), side="right").astype(np.int64)


LEVEL = 1e-3
SIZES = (0.004, 0.01, 0.025, 0.0625, 0.16, 0.4, 1.0, 2.5)
FEW_SIZES = (0.025, 0.1, 0.4, 1.6)
SHARES = (0.02, 0.06, 0.2, 0.5, 0.9)
MAX_SHARE_LOST = 0.95  # largest share of the stake that a bet may lose on one token


@dataclass(frozen=True, slots=True)
class Bet:
    """A share of the initial capital on one repeated bet.

    `scaled` bets expect the distribution (1 - size) q + size p instead of a constant edge.
    """

    share: float
    size: float
    sign: int = 1
    direction: int = DRAFT
    scaled: bool = False
    index: int | None = None  # only tokens of this stratum
    length: int | None = None

    @property
    def name(self) -> str:
        """Return direction, sign and stratum."""
        name = f"{DIRECTIONS[self.direction]} {'too often' if self.sign > 0 else 'too rarely'}"
        if self.index is not None:
            return f"{name}, {INDEX_STRATA[self.index]}"
        return name if self.length is None else f"{name}, {LENGTH_STRATA[self.length]}"


def _bets() -> tuple[Bet, ...]:
    """Return all bets; the shares of their initial capital sum up to 1."""

    def even(share: float, sizes: tuple[float, ...], **put: Any) -> list[Bet]:
        return [Bet(share / len(sizes), size, **put) for size in sizes]

    bets = even(0.5, SIZES)
    bets += even(0.15, SHARES, scaled=True)
    bets += even(0.05, SIZES, sign=-1)
    for sign in (1, -1):
        bets += even(0.05, SIZES, sign=sign, direction=ARGMAX)
        bets += even(0.02, FEW_SIZES, sign=sign, direction=EOS)
        bets += even(0.02, FEW_SIZES, sign=sign, direction=TAIL)
    for sign, i in product((1, -1), range(len(INDEX_STRATA))):
        bets += even(0.06 / 2 / len(INDEX_STRATA), FEW_SIZES, sign=sign, index=i)
    for sign, i in product((1, -1), range(len(LENGTH_STRATA))):
        bets += even(0.06 / 2 / len(LENGTH_STRATA), FEW_SIZES, sign=sign, length=i)
    return tuple(bets)


BETS = _bets()
MAIN = tuple(i for i, b in enumerate(BETS) if b.name == "draft too often" and not b.scaled)
"""Bets whose power the result states: half of the capital."""

NO_BAND: Floats = np.zeros(len(DIRECTIONS))


def log_factors(bet: Bet, mass: Floats, pull: Floats, band: float = 0.0) -> tuple[Floats, Floats]:
    """Return [...] the logarithms of the factors of a hit and of a miss of a set of `mass` [...].

    With a `band` the null is |bias| <= band: the bet is fair at the far end of it. Scaled bets
    expect the alternative to add `pull` [...] to the mass. Sizes are cut, so that one token takes
    at most a share `MAX_SHARE_LOST` of the stake.
    """
    mass = np.clip(mass + bet.sign * band, 0.0, 1.0)
    if bet.scaled:
        edge = bet.size * np.maximum(pull - band, 0.0)
        hit = np.log1p(edge / np.maximum(mass, 1e-9))
        return hit, np.log1p(-np.minimum(edge / np.maximum(1 - mass, 1e-9), MAX_SHARE_LOST))
    against = mass if bet.sign > 0 else 1 - mass
    size = np.minimum(bet.size, MAX_SHARE_LOST / np.maximum(against, 1e-9))
    win, lose = np.log1p(size * (1 - against)), np.log1p(-size * against)
    return (win, lose) if bet.sign > 0 else (lose, win)


class EProcess:
    """The e-process of one audit, updated as evidence arrives."""

    def __init__(self, band: Floats = NO_BAND) -> None:
        self.band = band
        self.logs = np.log([bet.share for bet in BETS])  # logarithm of the capital in each bet
        self.peak = 0.0  # largest logarithm of the total

    def take(self, evidence: Evidence) -> Floats:
        """Add tokens to `logs` and `peak`; return [n] the log of the capital after each of them."""
        paths = self.logs + np.cumsum(bet_log_factors(evidence, self.band), axis=0)
        if len(paths) == 0:
            return np.zeros(0)
        self.logs = paths[-1]
        whole = total(paths)
        self.peak = max(self.peak, float(whole.max()))
        return whole

    @property
    def leading_bet(self) -> str:
        """Return the name of the bets with most of the capital, those of one name together."""
        held: dict[str, float] = {}
        for bet, log in zip(BETS, self.logs - self.logs.max(), strict=True):
            held[bet.name] = held.get(bet.name, 0.0) + math.exp(log)
        return max(held, key=lambda name: held[name])


def bet_log_factors(evidence: Evidence, band: Floats = NO_BAND) -> Floats:
    """Return [n, B] log factors by bet; 0: other strata, not resolved. `band` [D]: bias allowed."""
    steps = np.zeros((len(evidence), len(BETS)))
    for i, bet in enumerate(BETS):
        live = evidence.live[:, bet.direction, 0 if bet.sign > 0 else 1]
        if bet.index is not None:
            live = live & (evidence.index == bet.index)
        if bet.length is not None:
            live = live & (evidence.length == bet.length)
        if live.any():
            mass = evidence.mass[:, bet.direction]
            hit, miss = log_factors(bet, mass, evidence.pull, float(band[bet.direction]))
            step = np.where(evidence.hit[:, bet.direction], hit, miss)
            steps[:, i] = np.where(live, step, 0.0)
    return steps


def total(logs: Floats) -> Floats:
    """Return [...] the logarithm of a sum whose parts' logarithms are [..., B]."""
    top = logs.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logs - top).sum(-1)) + top[..., 0])


def log_probs(logits: Floats) -> Floats:
    """Return [n, V] the log-probabilities of [n, V] logits."""
    return np.asarray(logits - total(logits)[:, None])


def alarm(level: float = LEVEL) -> float:
    """Return the logarithm of the e-value at which an audit of this level finds a bias."""
    return -math.log(level)


SIMULATIONS = 400
MISSED = 2  # simulations at most: a power of 0.995, for the stated 0.99
CAUGHT = 19  # repeats at least
STEPS = 12  # bisection steps; the result is within 0.1 % of the mean variance


@dataclass(frozen=True, slots=True)
class Control:
    """An injected bias of the claimed size, in seeded repeats of the same length."""

    bias: float
    caught: int
    repeats: int

    @property
    def passed(self) -> bool:
        """Return whether the audit detects the claimed bias often enough."""
        return self.caught >= CAUGHT


def claimable(evidence: Evidence, level: float = LEVEL, band: Floats = NO_BAND) -> float | None:
    """Return the least mean bias that an audit of such tokens detects with probability 0.99.

    `band` [D] is the bias that rounding explains. None: no tokens, all are certain, or even the
    largest tilt is missed. Seeded simulations of the tokens use main bets alone: conservative.
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
        chance = evidence.mass[:, DRAFT] + tilt_increase(evidence, kappa)
        hits = (uniforms < chance.astype(np.float32)).astype(np.float32)
        capital = total(start + (hits @ edge).astype(np.float64))
        return int((capital < alarm(level)).sum()) <= MISSED

    if not seen(most):
        return None
    low, high = 0.0, most
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return float(tilt_increase(evidence, high).mean())


def inject(
    evidence: Evidence, bias: float, level: float = LEVEL, band: Floats = NO_BAND
) -> Control:
    """Return the control of `bias`: in how many of REPEATS seeded draws with it an audit alarms."""
    free = np.maximum(1 - evidence.mass[:, DRAFT], 1e-12)
    # probability of replacing a token outside the set
    chance = tilt_increase(evidence, tilt_of(evidence, bias)) / free
    caught = 0
    for repeat in range(REPEATS):
        u = np.random.default_rng([repeat, len(evidence)]).random(len(evidence))
        outside = ~evidence.drawn[repeat][:, DRAFT]
        swap = outside & (u < chance)
        hit = np.where(swap[:, None], evidence.favoured[repeat], evidence.drawn[repeat])
        process = EProcess(band)
        process.take(replace(evidence, hit=hit))
        caught += process.peak >= alarm(level)
    return Control(bias, caught, REPEATS)


def tilt_increase(evidence: Evidence, kappa: float) -> Floats:
    """Return [n] the increase of the favoured set's probability by a tilt of `kappa`."""
    return np.minimum(kappa * evidence.spread, 1 - evidence.mass[:, DRAFT])


def tilt_of(evidence: Evidence, bias: float) -> float:
    """Return the tilt whose mean effect is `bias`, found by bisection; at most `tilt_limit`."""
    low, high = 0.0, tilt_limit(evidence)
    for _ in range(60):
        middle = (low + high) / 2
        small = tilt_increase(evidence, middle).mean() < bias
        low, high = (middle, high) if small else (low, middle)
    return high


def tilt_limit(evidence: Evidence) -> float:
    """Return the largest useful tilt; 0 if every hit or miss is certain."""
    return 8.0 if evidence.spread.sum() > 0 else 0.0
