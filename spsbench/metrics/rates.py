"""Figures of one generation from its rounds, by the glossary (docs/design.md), and gains."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from spsbench.metrics.intervals import CHANCE, POSITIVE, SHARE, Estimate, Floats, Jackknife, Scale
from spsbench.metrics.sums import AT, TIMES, Tally, pair_generations, totals
from spsbench.settings.cell import Cell
from spsbench.settings.records import MEASURES, Measure, RoundRecord

MS = 1e3
WHOLE = frozenset({"seconds", "round_seconds", "processor", "horizon", "first", "answer"})
"""The times that are more than 0 where they were measured; a part of a round may cost nothing."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of one generation or of several pooled; None where a figure does not apply."""

    tokens: int
    rounds: int  # 0 where an engine does not tell them
    drafted: int
    accepted: int
    alpha: float | None  # acceptance rate: chance that a tested draft token is kept
    draft_acceptance: float | None  # accepted / depth drafted; differs from alpha
    block_efficiency: float | None  # tau: tokens of rounds per round
    mean_token_time_ms: float | None  # decode time per emitted token, without prefill
    loop_time_ms: float | None  # time per round
    prefill_ms: float | None
    ttft_ms: float | None  # prefill and first round
    answer_ms: float | None  # prefill and all rounds
    draft_share: float | None  # share of the decode time
    target_share: float | None
    verify_share: float | None  # warp, verification, the copy to the host and bookkeeping


SHOWN = frozenset(field.name for field in fields(Metrics))


@dataclass(frozen=True, slots=True)
class Rate:
    """A ratio of sums over generations, times in ms.

    A whole time of 0 is no measurement: a server's answer can arrive in one read.
    """

    numerator: str  # a name in `sums.AT`
    denominator: str
    factor: float = 1.0
    scale: Scale = POSITIVE

    def __call__(self, sums: Floats) -> Floats:
        """Return the [...] figure of [..., F] sums, NaN where no time was measured."""
        values = self.factor * sums[..., AT[self.numerator]] / sums[..., AT[self.denominator]]
        return np.where(values > 0, values, np.nan) if self.numerator in WHOLE else values


def _sums_of(measure: Measure) -> tuple[str, str]:
    """Return the names of the sums whose ratio is the figure of a measure."""
    sums = f"sum.{measure.field}", f"of.{measure.field}"
    if measure.per == "machine":
        return sums[0], "sum.machine_seconds"
    return sums[::-1] if measure.inverse else sums


RATES: Mapping[str, Rate] = {
    # E[sum_x min(p, q)] over tested draft tokens (Leviathan et al. 2023, section 3): a lower
    # variance than counting kept tokens, and the same expectation
    "alpha": Rate("overlap", "overlap_tested", scale=CHANCE),
    "alpha_counted": Rate("kept", "tested", scale=CHANCE),
    "draft_acceptance": Rate("accepted", "depth", scale=CHANCE),
    "block_efficiency": Rate("round_tokens", "rounds"),
    "accepted_length": Rate("accepted", "rounds"),
    "text_tokens": Rate("tokens", "texts"),
    "mean_token_time_ms": Rate("seconds", "timed_tokens", MS),  # Chen et al. 2023, Table 1
    "processor_token_time_ms": Rate("processor", "processor_tokens", MS),
    "loop_time_ms": Rate("round_seconds", "timed_rounds", MS),  # Figure 1, right
    "horizon_time_ms": Rate("horizon", "reached", MS),  # Figure 1, left
    "ttft_ms": Rate("first", "started", MS),
    "answer_ms": Rate("answer", "started", MS),
    "token_time_with_prefill_ms": Rate("answer", "timed_tokens", MS),
    "prefill_ms": Rate("prefill", "timed", MS),
    "draft_share": Rate("draft", "split", scale=SHARE),
    "target_share": Rate("target", "split", scale=SHARE),
    "draft_pass_ms": Rate("draft", "timed_depth", MS),
    "target_pass_ms": Rate("target", "timed_rounds", MS),
} | {
    measure.figure: Rate(*_sums_of(measure), scale=CHANCE if measure.share else POSITIVE)
    for measure in MEASURES
    if measure.per != "process"
}
"""The definitions of all figures that are plain ratios, by the names of `Summary`."""

OF_TIME = tuple(
    name for name, rate in RATES.items() if TIMES.start <= AT[rate.denominator] < TIMES.stop
)
"""The figures of time, which load changes."""


def generation_metrics(rounds: Sequence[RoundRecord], prefill_seconds: float) -> Metrics:
    """Return figures of one generation: counts, 0 without rounds, rates, None where undefined."""
    sums = totals(rounds, prefill_seconds, horizon=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: float(RATES[name](np.array(sums))) for name in RATES.keys() & SHOWN}
    figures = {name: value if math.isfinite(value) else None for name, value in values.items()}
    draft, target = figures["draft_share"], figures["target_share"]
    return Metrics(
        tokens=int(sums.tokens),
        rounds=int(sums.rounds),
        drafted=int(sums.drafted),
        accepted=int(sums.accepted),
        verify_share=None if draft is None or target is None else 1 - draft - target,
        **figures,
    )


def estimate_speedup(
    baseline: Sequence[tuple[float, int]], other: Sequence[tuple[float, int]]
) -> Estimate:
    """Return the ratio of mean token times, from pairs of (seconds, tokens) by prompt.

    Mean token time of `baseline` over that of `other`: a ratio of sums, with an interval over pairs
    from 8 pairs on. ValueError: no pairs, unpaired values, or a pair without tokens or time.
    """
    pairs = [[*base, *drafting] for base, drafting in zip(baseline, other, strict=True)]
    rows = np.array(pairs, dtype=np.float64)  # [pairs, 4]
    if not pairs or not (rows > 0).all():
        raise ValueError("speed-up needs pairs of generations, each with time and tokens")
    gained = Jackknife(rows, np.arange(len(rows))).estimate(
        lambda sums: sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3]), counted=0
    )
    if gained is None:
        raise ValueError("speed-up needs times and tokens that are finite")
    return gained


def segments(rounds: Sequence[RoundRecord], size: int) -> list[tuple[float, int]]:
    """Sum rounds in a row to (seconds, tokens) of `size` tokens or more; a remainder is dropped."""
    groups: list[tuple[float, int]] = []
    seconds, tokens = 0.0, 0
    for r in rounds:
        seconds, tokens = seconds + r.seconds, tokens + r.emitted
        if tokens >= size:
            groups.append((seconds, tokens))
            seconds, tokens = 0.0, 0
    return groups


def baseline(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """Return the first K = 0 cell that differs from `cell` only in drafting; None without one."""
    return next((other for other in cells if other.k == 0 and other.same_work(cell)), None)


def baseline_gains(base: Tally, cell_tally: Tally, k: int | None) -> dict[str, Estimate | None]:
    """Return `speedup`, `answer_speedup`, `verify_ratio`, `cost_ratio` and `predicted_speedup`.

    {} without shared generations; a figure that does not apply is None. They are ratios of totals
    over the K = 0 baseline, paired by sample and repeat, so that a prompt weighs the same under
    both methods; the first three of the baseline itself are exactly 1. Without a `k` nothing is
    predicted.

    The prediction is Leviathan et al. 2023, theorem 3.8, over the rounds as drafted. A round of N
    drafted tokens is expected to emit sum_{i=0..N} alpha^i, which takes acceptances as independent.
    N is below K near the end of a text, and often 0 for a deterministic drafter. A round costs the
    drafting and the target's pass, in passes of the baseline's target: c N + v(N). No round emits
    more than the measured tau, or costs less than one pass, so the prediction never exceeds tau.

    Methods of one prompt run one after another and mostly share the load of the machine. Where load
    changes from one to the next, only many pairs even it out; `Estimate.loaded` marks such figures.
    """
    if (pairs := pair_generations([base, cell_tally], "started")) is None:
        return {}
    token_time, of_answer = RATES["mean_token_time_ms"], RATES["token_time_with_prefill_ms"]
    alpha, tau = RATES["alpha"], RATES["block_efficiency"]
    target_pass, draft_pass = RATES["target_pass_ms"], RATES["draft_pass_ms"]

    def cost_ratio(plain: Floats, sums: Floats) -> Floats:
        return draft_pass(sums) / target_pass(plain)

    def verify_ratio(plain: Floats, sums: Floats) -> Floats:
        return target_pass(sums) / target_pass(plain)

    def predicted(plain: Floats, sums: Floats) -> Floats:
        """Return the predicted speed-up of [..., F] sums: expected tokens over costs."""
        reached = sums[..., sums.shape[-1] - cell_tally.k :] / sums[..., AT["rounds"], None]
        depths = -np.diff(reached, prepend=1.0, append=0.0)  # share of rounds that drafted N tokens
        by_depth = expected_tokens(alpha(sums)[..., None], np.arange(depths.shape[-1]))
        depth = sums[..., AT["depth"]] / sums[..., AT["rounds"]]
        drafting = np.where(depth > 0, cost_ratio(plain, sums) * depth, 0.0)
        tokens = np.minimum((depths * by_depth).sum(-1), tau(sums))
        return np.asarray(tokens / np.maximum(drafting + verify_ratio(plain, sums), 1.0))

    ratios: dict[str, Callable[[Floats, Floats], Floats]] = {
        "speedup": lambda plain, sums: token_time(plain) / token_time(sums),
        "answer_speedup": lambda plain, sums: of_answer(plain) / of_answer(sums),
        "verify_ratio": verify_ratio,
    }
    figures = {name: pairs.estimate(ratio, "started") for name, ratio in ratios.items()}
    if base is cell_tally:  # 1 by definition
        figures = {name: estimate and estimate.certain for name, estimate in figures.items()}
    figures["cost_ratio"] = pairs.estimate(cost_ratio, "timed_depth")
    figures["predicted_speedup"] = pairs.estimate(predicted, "overlap_tested") if k else None
    return figures


def expected_tokens(alpha: ArrayLike, k: ArrayLike) -> Floats:
    """Return the expected tokens of a round whose K drafted tokens are each kept with chance alpha.

    Leviathan et al. 2023, equation 1: (1 - alpha^(K+1)) / (1 - alpha), and K + 1 at alpha = 1.
    Arrays are broadcast; K may be a mean.
    """
    chance, slots = np.asarray(alpha, np.float64), np.asarray(k, np.float64) + 1
    certain = chance == 1
    rejected = np.where(certain, 1.0, 1 - chance)
    return np.asarray(np.where(certain, slots, (1 - chance**slots) / rejected))


def alpha_for(tokens: float, k: float) -> float | None:
    """Return the alpha that gives `tokens` a round of `k` drafted; 0 up to 1, None from k + 1."""
    if tokens >= k + 1:
        return None
    if tokens <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < tokens else (low, middle)
    return high
