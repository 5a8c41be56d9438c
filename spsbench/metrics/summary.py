"""The figures of a cell: one row of a table. The glossary in docs/design.md defines them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Estimate, Floats
from spsbench.settings.cell import Cell


class Spread(NamedTuple):
    """How the time to the horizon varies over generations, in ms."""

    sd: float | None  # None with fewer than two
    p50: float
    p90: float | None  # None with fewer than 10: no generation lies beyond it
    p99: float | None  # None with fewer than 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a cell; None where one does not apply or nothing was measured.

    Rates are ratios of totals over all generations, so a long one weighs more than a short one;
    TTFT, prefill and the time to the horizon are means over generations.
    """

    cell: Cell
    group: str | None = None  # a category of the task; None = all of them
    samples: int  # with at least one good generation
    n: int  # good generations; failures are in no figure
    failures: int
    cut: int  # samples whose prompt was cut to fit the context
    timed: int  # generations whose timing was undisturbed
    loaded: int = 0  # and those that were timed while other work kept the machine busy
    horizon: int  # tokens: 128, or the cell's budget where that is smaller

    alpha: Estimate | None = None  # mean sum_x min(p, q) over tested draft tokens
    alpha_counted: Estimate | None = None  # kept / tested: the same by counting, for unknown laws
    alpha_at: tuple[Estimate | None, ...] = ()  # kept / tested at each position of the round
    sibling_at: tuple[Estimate | None, ...] = ()  # of trees: each child kept / looked at
    draft_acceptance: Estimate | None = None  # accepted / depth drafted; never alpha
    block_efficiency: Estimate | None = None  # tau: emitted / rounds
    efficiency: Estimate | None = None  # tau / (K + 1), under a constant K; depth + 1 of trees
    accepted_length: Estimate | None = None  # accepted / rounds: without the target's own token
    target_tv: Estimate | None = None  # of a quantised target to its full self, a token
    experts: Estimate | None = None  # distinct ones of a layer that a target pass read
    text_tokens: Estimate | None = None  # of a generation

    mean_token_time_ms: Estimate | None = None  # prefill not in it
    token_time_with_prefill_ms: Estimate | None = None
    processor_token_time_ms: Estimate | None = None  # of all threads, under load or not
    loop_time_ms: Estimate | None = None  # of a round
    horizon_time_ms: Estimate | None = None  # decode time of generations that got so far
    spread: Spread | None = None
    ttft_ms: Estimate | None = None  # prefill and first round
    prefill_ms: Estimate | None = None
    draft_share: Estimate | None = None  # of the decode time
    target_share: Estimate | None = None
    verify_share: Estimate | None = None  # the rest: warp, verification, bookkeeping
    draft_pass_ms: Estimate | None = None  # for each token of depth drafted
    target_pass_ms: Estimate | None = None  # for each round

    speedup: Estimate | None = None  # against the K = 0 cell; 1 for that cell itself
    cost_ratio: Estimate | None = None  # c: draft pass over the target's at K = 0
    verify_ratio: Estimate | None = None  # v(K): target pass at K over that at K = 0
    predicted_speedup: Estimate | None = None  # from alpha, what was drafted, and its costs
    with_load: Mapping[str, Estimate | None] = field(default_factory=dict)  # see `at_any_load`
    quality: Mapping[str, Estimate | None] = field(default_factory=dict)  # n counts samples
    terms: Mapping[str, Estimate | None] = field(default_factory=dict)  # see `terms.py`, if asked

    @property
    def figures(self) -> dict[str, Estimate | None]:
        """Every estimate by name: fields, `alpha_at.1` ..., `quality.rouge2` ..., `terms.` ..."""
        named: dict[str, Estimate | None] = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name in FIGURES
        }
        named |= {f"alpha_at.{i}": at for i, at in enumerate(self.alpha_at, start=1)}
        named |= {f"sibling_at.{i}": at for i, at in enumerate(self.sibling_at, start=1)}
        named |= {f"with_load.{name}": value for name, value in self.with_load.items()}
        named |= {f"quality.{name}": value for name, value in self.quality.items()}
        return named | {f"terms.{name}": value for name, value in self.terms.items()}

    def at_any_load(self, name: str) -> tuple[Estimate | None, bool]:
        """A figure, and whether it stands on timings under load, since there are no quiet ones.

        Figures of time are those of undisturbed timings. Gains are too, where there are such pairs,
        else those of all: the arms of a pair share their load. `with_load` has both over all
        timings, if some were taken under load.
        """
        own, other = self.figures.get(name), self.with_load.get(name)
        if other is not None and own in (None, other):
            return other, True
        return own, False


FIGURES = frozenset(f.name for f in fields(Summary) if f.type == Estimate | None)
"""The fields that hold one estimate."""


def spread(times: Floats) -> Spread | None:
    """The spread of one time a generation; None for none."""
    n = len(times)
    if n == 0:
        return None
    p50, p90, p99 = (float(p) for p in np.percentile(times, [50, 90, 99]))
    sd = float(times.std(ddof=1)) if n > 1 else None
    return Spread(sd, p50, p90 if n >= 10 else None, p99 if n >= 100 else None)
