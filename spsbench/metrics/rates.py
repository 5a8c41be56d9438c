"""Rounds -> figures of one generation, by the glossary (docs/design.md); nothing measured here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from spsbench.metrics.intervals import CHANCE, POSITIVE, SHARE, Estimate, Floats, Jackknife, Scale
from spsbench.metrics.sums import AT, TIMES, Totals, totals
from spsbench.settings.records import RoundRecord

__all__ = [
    "MS",
    "Estimate",
    "Metrics",
    "metrics",
    "ratio",
    "segments",
    "speedup",
]

MS = 1e3


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a generation, or of several pooled; None where a figure does not apply."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    alpha: float | None  # acceptance rate: chance that a tested draft token is kept
    draft_acceptance: float | None  # accepted / depth drafted; never the same thing as alpha
    block_efficiency: float | None  # tau: emitted tokens per round
    mean_token_time_ms: float | None  # decode time per emitted token, prefill not in it
    loop_time_ms: float | None  # time per round
    prefill_ms: float | None
    ttft_ms: float | None  # prefill and first round
    draft_share: float | None  # of the decode time
    target_share: float | None
    verify_share: float | None  # warp, verification, the host read and bookkeeping


SHOWN = frozenset(field.name for field in fields(Metrics))


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure that is a ratio of sums over generations, times in ms."""

    numerator: str  # fields of `Totals`
    denominator: str
    factor: float = 1.0
    scale: Scale = POSITIVE

    def __call__(self, sums: Floats) -> Floats:
        """[..., F] sums -> [...] figure."""
        return self.factor * sums[..., AT[self.numerator]] / sums[..., AT[self.denominator]]

    def of(self, sums: Totals) -> float | None:
        """The figure of one generation."""
        return ratio(self.factor * getattr(sums, self.numerator), getattr(sums, self.denominator))


RATES: Mapping[str, Rate] = {
    # E[sum_x min(p, q)] over tested draft tokens (Leviathan et al. 2023, section 3): a lower
    # variance than counting kept tokens, and the same expectation
    "alpha": Rate("overlap", "overlap_tested", scale=CHANCE),
    "alpha_counted": Rate("kept", "tested", scale=CHANCE),
    "draft_acceptance": Rate("accepted", "depth", scale=CHANCE),
    "block_efficiency": Rate("tokens", "rounds"),
    "accepted_length": Rate("accepted", "rounds"),
    "target_tv": Rate("distance", "compared", scale=CHANCE),
    "experts": Rate("experts", "routed"),
    "text_tokens": Rate("tokens", "texts"),
    "mean_token_time_ms": Rate("seconds", "timed_tokens", MS),  # Chen et al. 2023, Table 1
    "processor_token_time_ms": Rate("processor", "processor_tokens", MS),
    "loop_time_ms": Rate("seconds", "timed_rounds", MS),  # Figure 1, right
    "horizon_time_ms": Rate("horizon", "reached", MS),  # Figure 1, left
    "ttft_ms": Rate("first", "started", MS),
    "prefill_ms": Rate("prefill", "timed", MS),
    "draft_share": Rate("draft", "parted", scale=SHARE),
    "target_share": Rate("target", "parted", scale=SHARE),
    "draft_pass_ms": Rate("draft", "timed_depth", MS),
    "target_pass_ms": Rate("target", "timed_rounds", MS),
}
"""Every figure that is a plain ratio, defined once; the names are those of `Summary`."""

OF_TIME = tuple(name for name, rate in RATES.items() if AT[rate.denominator] >= TIMES.start)
"""Those that stand on times, which load changes."""


def metrics(rounds: Sequence[RoundRecord], prefill_seconds: float) -> Metrics:
    """The figures of one generation."""
    sums = totals(rounds, prefill_seconds, horizon=1)
    figures = {name: rate.of(sums) for name, rate in RATES.items() if name in SHOWN}
    draft, target = figures["draft_share"], figures["target_share"]
    return Metrics(
        tokens=int(sums.tokens),
        rounds=int(sums.rounds),
        drafted=int(sums.drafted),
        accepted=int(sums.accepted),
        verify_share=None if draft is None or target is None else 1 - draft - target,
        **figures,
    )


def ratio(numerator: float, denominator: float) -> float | None:
    """`numerator / denominator`, None when there is nothing to divide by."""
    return numerator / denominator if denominator else None


def speedup(baseline: Sequence[tuple[float, int]], other: Sequence[tuple[float, int]]) -> Estimate:
    """Mean token time of `baseline` over that of `other`, pairs of (seconds, tokens) by prompt.

    The ratio of the sums, with its interval over the pairs from 8 on.

    Raises:
        ValueError: no pairs, unpaired ones, or one without tokens or time.
    """
    pairs = [[*base, *own] for base, own in zip(baseline, other, strict=True)]
    rows = np.array(pairs, dtype=np.float64)  # [pairs, 4]
    if not pairs or not (rows > 0).all():
        raise ValueError("speed-up needs pairs of generations, each with time and tokens")
    gained = Jackknife(rows, np.arange(len(rows))).estimate(_gain, counted=0)
    if gained is None:
        raise ValueError("speed-up needs times and tokens that are finite")
    return gained


def segments(rounds: Sequence[RoundRecord], size: int) -> list[tuple[float, int]]:
    """(seconds, tokens) of consecutive rounds, grouped to at least `size` tokens; no remainder."""
    groups: list[tuple[float, int]] = []
    seconds, tokens = 0.0, 0
    for r in rounds:
        seconds, tokens = seconds + r.seconds, tokens + r.emitted
        if tokens >= size:
            groups.append((seconds, tokens))
            seconds, tokens = 0.0, 0
    return groups


def _gain(sums: Floats) -> Floats:
    """[..., 4] sums of seconds, tokens, seconds, tokens -> [...]."""
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
