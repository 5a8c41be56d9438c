"""The arithmetic of two devices against their clocks, event by event, over every acceptance.

The simulation knows nothing of chances of positions: it draws each acceptance, moves two clocks,
and notes when a prefix becomes known. All draws are enumerated, so both sides are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest

from spsbench.errors import UsageError
from spsbench.planning.forecast.acceptance_chances import Sampled
from spsbench.planning.forecast.forecasts import Candidate
from spsbench.planning.forecast.overlap import (
    check_overlap,
    forecast_overlap,
    hit_chances,
    pearl,
    ssd,
)
from spsbench.planning.forecast.recommendation import forecast_all
from spsbench.planning.forecast.replay import Span
from spsbench.spec import Spec
from spsbench.store.trace_records import Drawn
from tests.planning.forecast.test_forecasts import DRAFT, SMALL, flat, texts

L = 5


@dataclass
class Speeds:
    """Seconds of a drafted token, of a pass over one token, and of each token or branch more."""

    token: float
    target: float
    more: float = 0.1

    def draft(self, tokens, at):
        return np.array([self.token * tokens])

    def prepare(self, tokens, branches, at):
        return np.array([self.token * (1 + tokens * (1 + self.more * branches))])

    def verify(self, drafted, at):
        return np.array([self.target + self.more * drafted + 0.01 * at])


@dataclass
class Draws:
    """The draws of one path: scripted at first, then all true; `chance` is that of the path."""

    script: list[bool]
    chance: float = 1.0
    trail: list[tuple[bool, bool]] = field(default_factory=list)  # drawn, and whether free

    def __call__(self, probability: float) -> bool:
        number = len(self.trail)
        free = 0 < probability < 1
        drawn = self.script[number] if number < len(self.script) else probability > 0
        self.chance *= probability if drawn else 1 - probability
        self.trail.append((drawn, free))
        return drawn


def expected(simulate: Callable[[Draws], float]) -> float:
    """Return the mean of a simulation over every path of its draws."""
    total, mass, script = 0.0, 0.0, []
    while True:
        draws = Draws(script)
        total += simulate(draws) * draws.chance
        mass += draws.chance
        trail = draws.trail
        while trail and not (trail[-1][1] and trail[-1][0]):
            trail.pop()
        if not trail:
            assert mass == pytest.approx(1)
            return total
        script = [drawn for drawn, _ in trail[:-1]] + [False]


def clocks_of_ssd(text, span, k, f, speeds, draws, early=False):
    """Return when the text is complete; `early`: a missed draft begins before its prefix is known.

    The draft device begins to prepare when the target begins, and drops it when a miss is known.
    """
    slots, rank, above = text
    target = draft = 0.0  # when each device is free
    at, ready = 0, None  # when the draft from here is complete, if it was prepared
    while at < span.length:
        n = min(k, span.room(at))
        if ready is None:  # token by token, after the newest token
            ready = draft if early else max(draft, target)
            ready += sum(speeds.draft(1, at + i)[0] for i in range(n))
        started = draft = max(target, ready)
        target = started + speeds.verify(n, at)[0]
        kept, ready = 0, None
        while kept < n and draws(slots[at + kept] if at + kept < L else 0.0):
            kept += 1
        newest, at = at + kept, at + kept + 1
        if at >= span.length:
            return target
        others = rank[newest]  # tokens before the newest, without the one that was rejected
        if kept < n and others and draws(above[newest]):
            others -= 1
        following = min(k, span.room(at))
        if others < f and following:
            ready = started + speeds.prepare(following, f * (n + 1), newest - kept)[0]
    return target


def clocks_of_pearl(slots, span, k, speeds, draws, early=False):
    """Return when the text is complete; `early`: tokens after a rejection were drafted before it.

    Both devices begin a step when both have ended the last one: only then is its prefix known.
    """
    now, at, waiting = 0.0, 0, []  # positions that were drafted and are not yet tested
    while at < span.length:
        ends = at + span.room(at)
        begin = at + len(waiting)
        fresh = list(range(begin, min(begin + k, ends)))
        draft = now + sum(speeds.draft(1, position)[0] for position in fresh)
        target = now + speeds.verify(len(waiting), at)[0]
        now = max(target, draft)
        tested, kept = [*waiting, *fresh[:1]], 0
        while kept < len(tested) and draws(slots[tested[kept]] if tested[kept] < L else 0.0):
            kept += 1
        if kept == len(tested) and fresh:
            at, waiting = at + kept, fresh[1:]
        else:
            at, waiting = at + kept + 1, []
            if early:
                waiting = list(range(at, min(at + k - 1, at + span.room(at))))
    return now


def made(seed, length=L):
    """Return chances, ranks and shares of a text, with certain and impossible ones among them."""
    dice = np.random.default_rng(seed)
    slots = dice.choice([0.0, 0.3, 0.6, 0.9, 1.0], length)
    rank = dice.integers(0, 4, length)
    above = np.where(rank > 0, dice.choice([0.0, 0.25, 0.8, 1.0], length), 0.0)
    return slots, rank, above


def along(text):
    slots, rank, above = text
    ones = np.ones(len(slots))
    rest = {"entropy": ones, "peak": ones, "overlap": slots, "agrees": ones > 0}
    return Drawn(p=slots, rank=rank.astype(np.uint8), above=above, **rest)


SPANS = (Span(L, L), Span(L, 20), Span(L, 20, reach=3))  # to the budget, to EOS, out of context
SPEEDS = (Speeds(1.0, 10.0), Speeds(3.0, 5.0, 0.5), Speeds(2.0, 1.0))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("span", SPANS)
def test_ssd_equals_the_clocks(k, span):
    for seed, f, speeds in product(range(4), (1, 2), SPEEDS):
        text = made(seed)
        chances = Sampled(np.ones(L), text[0])
        found = ssd(along(text), chances, span, k, f, speeds)
        clock = expected(lambda d: clocks_of_ssd(text, span, k, f, speeds, d))  # noqa: B023
        assert found.seconds[0] == pytest.approx(clock, rel=1e-12)
        assert 0 <= found.hits <= found.drafts + 1e-12


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("span", SPANS)
def test_pearl_equals_the_clocks(k, span):
    for seed, speeds in product(range(6), SPEEDS):
        slots = made(seed)[0]
        found = pearl(Sampled(np.ones(L), slots), span, k, speeds)
        clock = expected(lambda d: clocks_of_pearl(slots, span, k, speeds, d))  # noqa: B023
        assert found.seconds[0] == pytest.approx(clock, rel=1e-12)


def test_a_draft_before_its_prefix_is_known_is_seen():
    """Planted: a draft that begins while the token that it follows is still being verified."""
    text, span, speeds = made(1), Span(L, 20), Speeds(3.0, 5.0)
    chances = Sampled(np.ones(L), text[0])
    right, wrong = (
        expected(lambda d: clocks_of_ssd(text, span, 2, 1, speeds, d, early))  # noqa: B023
        for early in (False, True)
    )
    found = ssd(along(text), chances, span, 2, 1, speeds).seconds[0]
    assert found == pytest.approx(right, rel=1e-12)
    assert wrong < 0.95 * found
    late, soon = (
        expected(lambda d: clocks_of_pearl(text[0], span, 2, speeds, d, early))  # noqa: B023
        for early in (False, True)
    )
    assert pearl(chances, span, 2, speeds).seconds[0] == pytest.approx(late, rel=1e-12)
    assert soon < 0.95 * late


def hits_by_enumeration(p, q, f):
    """Return token -> chance of a hit given that it is emitted where a drafted token is rejected.

    Every drafted token and every token of the residual, by the words of the method: the F likeliest
    tokens of the draft's law but the drafted one.
    """
    refused, residual = np.clip(p - q, 0, None), np.clip(q - p, 0, None)
    joint, hit = np.zeros(len(p)), np.zeros(len(p))
    for drafted, emitted in product(range(len(p)), repeat=2):
        mass = refused[drafted] * residual[emitted] / max(residual.sum(), 1e-300)
        order = [x for x in np.argsort(-p, kind="stable") if x != drafted]
        joint[emitted] += mass
        hit[emitted] += mass * (emitted in order[:f])
    return {x: hit[x] / joint[x] for x in range(len(p)) if joint[x] > 0}


@pytest.mark.parametrize("f", [1, 2, 3])
def test_a_hit_is_as_likely_as_by_enumeration(f):
    """Columns as a trace has them, ties in p included."""
    import torch

    from spsbench.benchmark.target_laws import Laws
    from spsbench.benchmark.trace_draft import compared

    dice = np.random.default_rng(f)
    for _ in range(5):
        p, q = (dice.integers(0, 5, 6) + 0.01 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        every = torch.arange(6)
        rows = [torch.tensor(each).expand(6, 6) for each in (p, q)]
        found = compared(rows[0], rows[0], Laws(rows[1].log(), rows[1]), every)
        text = found["p"].numpy(), found["rank"].numpy(), found["above"].numpy()
        rejected, whole = hit_chances(along(text), 1, f)
        for token, chance in hits_by_enumeration(p, q, f).items():
            assert rejected[token] == pytest.approx(chance, abs=1e-9)
        likeliest = np.argsort(-p, kind="stable")[:f]
        assert set(np.flatnonzero(whole[:6])) == set(likeliest)


def ranked(alpha, rank=0):
    """Texts whose every acceptance is `alpha`, and whose every token has this rank."""
    ranks = {"rank": np.full(24, rank, np.uint8), "above": np.zeros(24)}
    return [(text, replace(each, **ranks)) for text, each in texts(alpha)]


def test_a_second_device_hides_the_draft():
    """All tokens kept and all drafts ready: the time is that of the target's passes."""
    traced = {SMALL: (DRAFT, ranked(1.0))}
    found = forecast_all([Candidate(draft=SMALL, verifier="sps", k=4)], traced, flat())
    (made,) = forecast_overlap(Spec.parse("ssd:f=1"), found, traced)
    assert made.hit_rate.mean == 1
    # 24 tokens in 5 rounds of 14 + 0.5 + 0.2 + 0.3 + 0.5; a branch costs as a token of the target
    prepared = 2 * (1 + 4 * 1.4)
    assert prepared < 15.5
    plain = 24 * (10 + 0.1 + 0.2 + 0.3 + 0.5)
    assert made.speedup.mean == pytest.approx(plain / (8 + 5 * 15.5), rel=0.02)
    assert "predicted, nothing ran on two" in str(made)
    (missed,) = forecast_overlap(Spec.parse("ssd:f=1"), found, {SMALL: (DRAFT, ranked(1.0, 9))})
    assert missed.hit_rate.mean == 0
    assert missed.speedup.mean == pytest.approx(found.best.speedup.mean, rel=1e-6)
    (hidden,) = forecast_overlap(Spec("pearl"), found, traced)
    assert hidden.hit_rate is None
    assert hidden.speedup.mean > found.best.speedup.mean
    assert hidden.values()["overlap"] == "pearl"


def test_what_has_no_overlap():
    traced = {SMALL: (DRAFT, texts(0.5))}
    found = forecast_all([Candidate(draft=SMALL, verifier="sps", k=4)], traced, flat())
    assert forecast_overlap(Spec("pearl"), found, traced)
    for other in (
        Candidate(draft=SMALL, verifier="block", k=4),
        Candidate(draft="ngram", verifier="sps", k=4),
    ):
        with pytest.raises(UsageError, match="expected a draft model and the verifier sps"):
            check_overlap(Spec("pearl"), [other], {SMALL})
