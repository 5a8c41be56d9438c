"""What a trace and a table of costs say of a way to speculate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spsbench.metrics.intervals import FEWEST, Estimate, Floats, Jackknife, over
from spsbench.planning.forecast.candidates import SEEN, Candidate
from spsbench.planning.forecast.costs import RoundCost
from spsbench.planning.forecast.pricing import Prices
from spsbench.planning.forecast.replay import Law, pooled_tau, replay
from spsbench.planning.forecast.surface import Typical, typical
from spsbench.planning.forecast.traces import Along, DraftOf, Drawn, Written, chances

ALL_THROWS = 2000  # over all texts, where a schedule is thrown and not reckoned
FEWEST_THROWS = 20


class Shares(NamedTuple):
    """Where the time of a round goes, each a part of the whole."""

    draft: float
    target: float
    sampling: float
    verify: float
    host: float
    unexplained: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """What a candidate is predicted to do."""

    candidate: Candidate
    alpha: Estimate | None  # chance that a tested token is kept; None: the rule tests no slots
    right: float  # the same of the pair, whatever the rule: expected kept among the looked at
    tau: Estimate  # emitted tokens a round
    ms: Estimate  # decode time of a token
    speedup: Estimate  # over ArS on the same texts
    by_texts: Estimate  # the same as if the costs were known for sure
    plain_ms: float  # of ArS
    shares: Shares
    cost: RoundCost  # of a round of the mean K after the mean context
    drafted: float  # tokens of a round, the mean
    wasted: float  # part of the drafted tokens that is not kept
    exact: bool  # the counts are those of the texts; only times are estimates
    thrown: bool  # the coins were thrown, not reckoned with
    texts: int


def forecast(
    candidate: Candidate,
    draft: DraftOf,
    traced: Sequence[tuple[Written, Along]],
    prices: Prices,
) -> Forecast:
    """Replay a candidate along every text, and price its rounds."""
    throws = max(FEWEST_THROWS, ALL_THROWS // len(traced))
    laws = [law_of(candidate, draft, *each, throws) for each in traced]
    texts = [text for text, _ in traced]
    parts = np.stack(
        [prices.of_law(candidate, text, law) for text, law in zip(texts, laws, strict=True)]
    )  # [texts, parts, turns]
    plain = np.stack([prices.of_plain(text) for text in texts])  # [texts, turns]
    emitted = np.array([float(law.emitted) for law in laws])
    rounds = np.array([law.mean_rounds for law in laws])
    whole = parts.sum(1)  # [texts, turns]

    clusters = np.unique([text.key[1] for text in texts], return_inverse=True)[1]
    good, looked = kept(laws, traced)
    columns = [emitted, rounds, np.median(whole, 1), np.median(plain, 1), good, looked]
    sums = Jackknife(np.column_stack(columns), clusters)
    tau, ms = sums.estimate(over(0, 1), 1), sums.estimate(over(2, 0), 0)
    gained = sums.estimate(over(3, 2), 2)
    if tau is None or ms is None or gained is None:
        raise ValueError("texts without a token")
    of_turns = whole.sum(0)
    drafted = sum(law.drafted for law in laws)
    accepted = sum(law.accepted for law in laws)
    shares = np.median(parts.sum(0) / of_turns, 1)
    asked = sum(s.chance * s.asked for law in laws for s in law.starts) / rounds.sum()
    mean_context = float(np.mean([t.prompt_tokens + len(t.q) / 2 for t in texts]))
    speedup = widened(gained, typical(plain.sum(0) / of_turns, prices.costs.busy))
    return Forecast(
        candidate=candidate,
        alpha=None if candidate.verifier == "block" else sums.estimate(over(4, 5), 5),
        right=float(good.sum() / max(looked.sum(), 1e-12)),
        tau=tau,
        ms=widened(times(ms, 1e3), typical(1e3 * of_turns / emitted.sum(), prices.costs.busy)),
        speedup=within(speedup, tau),
        by_texts=gained,
        plain_ms=float(np.median(plain.sum(0)) / emitted.sum() * 1e3),
        shares=Shares(*(float(each) for each in shares)),
        cost=prices.round_of(candidate, asked, mean_context, drafted / rounds.sum()),
        drafted=float(drafted / rounds.sum()),
        wasted=1 - accepted / drafted if drafted else 0.0,
        exact=draft.exact,
        thrown=any(law.throws for law in laws),
        texts=len(set(clusters)),
    )


def tau_of(candidate: Candidate, draft: DraftOf, traced: Sequence[tuple[Written, Along]]) -> float:
    """Block efficiency alone: no costs are needed."""
    throws = max(FEWEST_THROWS, ALL_THROWS // len(traced))
    return pooled_tau(law_of(candidate, draft, *each, throws) for each in traced)


def law_of(candidate: Candidate, draft: DraftOf, text: Written, along: Along, throws: int) -> Law:
    """The rounds that a text takes."""
    rule: Any = candidate.verifier if draft.sampled else SEEN
    name = None if candidate.schedule is None else candidate.schedule[0]
    reach = along.reach if isinstance(along, Drawn) else None
    return replay(chances(text, along, rule, name), text.span(reach), candidate.policy, throws)


def kept(laws: Sequence[Law], traced: Sequence[tuple[Written, Along]]) -> tuple[Floats, Floats]:
    """[texts] expected kept tokens among the tested, and tested ones.

    Of a sampled draft by the overlap of the laws, as the loop records it: the pair's alpha.
    """
    found = []
    for law, (_, along) in zip(laws, traced, strict=True):
        if isinstance(along, Drawn):
            found.append((float(law.looked @ along.overlap), float(law.looked.sum())))
        else:
            found.append((law.accepted, law.tested))
    both = np.array(found)
    return both[:, 0], both[:, 1]


def times(estimate: Estimate, factor: float) -> Estimate:
    """In another unit."""
    low, high = (None if e is None else e * factor for e in (estimate.low, estimate.high))
    return Estimate(estimate.mean * factor, low, high, estimate.n)


def widened(by_texts: Estimate, by_turns: Typical) -> Estimate:
    """An interval for both reasons to doubt: other texts, and another measurement of the costs.

    Both are relative and independent, so their squares are added on the scale of logarithms.
    """
    mean = by_turns.value
    if by_texts.low is None or by_texts.high is None:
        return Estimate(mean, None, None, by_texts.n)
    low = np.hypot(np.log(by_texts.mean / by_texts.low), np.log(mean / by_turns.low))
    high = np.hypot(np.log(by_texts.high / by_texts.mean), np.log(by_turns.high / mean))
    return Estimate(mean, float(mean * np.exp(-low)), float(mean * np.exp(high)), by_texts.n)


def within(speedup: Estimate, tau: Estimate) -> Estimate:
    """A speed-up that does not exceed tau: a round takes as long as a plain one, or longer.

    Costs by context and in turns may say otherwise where they vary much.
    """
    mean, low, high = min(speedup.mean, tau.mean), speedup.low, speedup.high
    if low is None or high is None:
        return Estimate(mean, None, None, speedup.n)
    most = tau.mean if tau.high is None else tau.high
    return Estimate(mean, min(low, mean), max(mean, min(high, most)), speedup.n)


def lacking(forecast: Forecast, tokens: int, wanted: float) -> tuple[float, int] | None:
    """Half the relative width that the texts leave to the speed-up, and tokens that would do.

    None: it is no wider than `wanted`, or there are too few texts to tell.
    """
    low, high = forecast.by_texts.low, forecast.by_texts.high
    if low is None or high is None or forecast.texts < FEWEST:
        return None
    half = (high - low) / 2 / forecast.by_texts.mean
    if half <= wanted:
        return None
    return half, int(np.ceil(tokens * ((half / wanted) ** 2 - 1)))
