"""Rounds -> figures of one generation, by the glossary (docs/design.md); nothing measured here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.intervals import Bootstrap, Estimate, Floats
from spsbench.results import RoundRecord

__all__ = [
    "MS",
    "Estimate",
    "Metrics",
    "acceptance_rate",
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
    draft_acceptance: float | None  # accepted / drafted; never the same thing as alpha
    block_efficiency: float | None  # tau: emitted tokens per round
    mean_token_time_ms: float | None  # decode time per emitted token, prefill not in it
    loop_time_ms: float | None  # time per round
    prefill_ms: float
    ttft_ms: float | None  # prefill and first round
    draft_share: float | None  # of the decode time
    target_share: float | None
    verify_share: float | None  # warp, verification, the host read and bookkeeping


def metrics(rounds: Sequence[RoundRecord], prefill_seconds: float) -> Metrics:
    """The figures of one generation."""
    emitted = sum(r.emitted for r in rounds)
    drafted = sum(r.drafted for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    seconds = sum(r.seconds for r in rounds)
    draft = ratio(sum(r.draft_seconds for r in rounds), seconds)
    target = ratio(sum(r.target_seconds for r in rounds), seconds)
    return Metrics(
        tokens=emitted,
        rounds=len(rounds),
        drafted=drafted,
        accepted=accepted,
        alpha=acceptance_rate(rounds),
        draft_acceptance=ratio(accepted, drafted),
        block_efficiency=ratio(emitted, len(rounds)),
        mean_token_time_ms=ratio(MS * seconds, emitted),
        loop_time_ms=ratio(MS * seconds, len(rounds)),
        prefill_ms=MS * prefill_seconds,
        ttft_ms=MS * (prefill_seconds + rounds[0].seconds) if rounds else None,
        draft_share=draft,
        target_share=target,
        verify_share=None if draft is None or target is None else 1 - draft - target,
    )


def acceptance_rate(rounds: Sequence[RoundRecord]) -> float | None:
    """Alpha = E[sum_x min(p, q)] over tested draft tokens (Leviathan et al. 2023, section 3).

    The mean of the overlaps has a lower variance than counting kept tokens and the same
    expectation. None when nothing was tested one by one (block verification, trees, K = 0).
    """
    tested = [r for r in rounds if r.overlap is not None and r.tested > 0]
    return ratio(sum(r.overlap or 0.0 for r in tested), sum(r.tested for r in tested))


def ratio(numerator: float, denominator: float) -> float | None:
    """`numerator / denominator`, None when there is nothing to divide by."""
    return numerator / denominator if denominator else None


def speedup(baseline: Sequence[tuple[float, int]], other: Sequence[tuple[float, int]]) -> Estimate:
    """Mean token time of `baseline` over that of `other`, pairs of (seconds, tokens) by prompt.

    The ratio of the sums, with its interval over the pairs.

    Raises:
        ValueError: no pairs, unpaired ones, or one without tokens or time.
    """
    pairs = [[*base, *own] for base, own in zip(baseline, other, strict=True)]
    rows = np.array(pairs, dtype=np.float64)  # [pairs, 4]
    if not pairs or not (rows > 0).all():
        raise ValueError("speed-up needs pairs of generations, each with time and tokens")
    gained = Bootstrap(rows, np.arange(len(rows))).estimate(_gain, counted=0)
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
