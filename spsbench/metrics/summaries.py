"""Summaries of cells from records and scores, reduced to sums while streaming.

The glossary in docs/design.md defines the figures of a summary, one row of a table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np

from spsbench.metrics.intervals import (
    CHANCE,
    SHARE,
    Estimate,
    Floats,
    Jackknife,
    of_means,
    ratio_of,
)
from spsbench.metrics.parity import Combine, Qualities, average, greatest, qualities
from spsbench.metrics.rates import MS, OF_TIME, RATES, baseline, baseline_gains
from spsbench.metrics.sums import AT, SIBLINGS, SLOTS, Tally, without_loaded
from spsbench.settings.cell import Cell
from spsbench.settings.records import MEASURES, Record, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a cell; None where one does not apply or nothing was measured.

    Rates are ratios of totals over all generations, so a long one weighs more than a short one;
    TTFT, prefill, the time of an answer and that to the horizon are means over generations. Figures
    of time are over undisturbed timings; without any, over those under load (`Estimate.loaded`).
    """

    cell: Cell
    group: str | None = None  # a category of the task; None = all of them
    samples: int  # with at least one good generation
    n: int  # good generations; figures exclude failures
    failures: int = 0
    cut: int = 0  # samples whose prompt was cut to fit the context
    timed: int = 0  # generations whose timing was undisturbed
    loaded: int = 0  # generations timed under load
    horizon: int  # tokens: 128, or the cell's budget where that is smaller

    alpha: Estimate | None = None  # mean sum_x min(p, q) over tested draft tokens
    alpha_counted: Estimate | None = None  # kept / tested, for unknown distributions
    alpha_at: tuple[Estimate | None, ...] = ()  # kept / tested at each position of the round
    sibling_at: tuple[Estimate | None, ...] = ()  # in trees: each child kept / tested
    draft_acceptance: Estimate | None = None  # accepted / depth drafted; differs from alpha
    block_efficiency: Estimate | None = None  # tau: tokens of rounds / rounds
    efficiency: Estimate | None = None  # tau / (K + 1), under a constant K; depth + 1 of trees
    accepted_length: Estimate | None = None  # accepted / rounds: without the target's own token
    text_tokens: Estimate | None = None  # tokens of a generation

    mean_token_time_ms: Estimate | None = None  # without prefill
    token_time_with_prefill_ms: Estimate | None = None
    processor_token_time_ms: Estimate | None = None  # all threads', at any load
    loop_time_ms: Estimate | None = None  # time of a round
    horizon_time_ms: Estimate | None = None  # decode time of generations that reached the horizon
    spread: Mapping[str, float | None] | None = None  # quantiles of the time to the horizon
    ttft_ms: Estimate | None = None  # prefill and first round
    answer_ms: Estimate | None = None  # prefill and all rounds: until the last token
    prefill_ms: Estimate | None = None
    draft_share: Estimate | None = None  # share of the decode time
    target_share: Estimate | None = None
    verify_share: Estimate | None = None  # the rest: warp, verification, bookkeeping
    draft_pass_ms: Estimate | None = None  # for each drafted token of depth
    target_pass_ms: Estimate | None = None  # for each round

    speedup: Estimate | None = None  # against the K = 0 cell; 1 for that cell itself
    answer_speedup: Estimate | None = None  # the same with the prefill: of the whole answer
    cost_ratio: Estimate | None = None  # c: draft pass over the target's at K = 0
    verify_ratio: Estimate | None = None  # v(K): target pass at K over that at K = 0
    predicted_speedup: Estimate | None = None  # from alpha, what was drafted, and its costs
    measured: Mapping[str, Estimate | None] = field(default_factory=dict)  # figures of `MEASURES`
    quality: Mapping[str, Estimate | None] = field(default_factory=dict)  # n counts samples
    terms: Mapping[str, Estimate | None] = field(default_factory=dict)  # a plan's own

    @property
    def figures(self) -> dict[str, Estimate | None]:
        """Return estimates, or None, by name: `speedup`, `alpha_at.1`, `quality.rouge2`, ..."""
        named: dict[str, Estimate | None] = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name in FIGURES
        }
        named |= self.measured
        for name in ("sd", "p99"):
            x = (self.spread or {}).get(name)
            named[f"spread_ms.{name}"] = None if x is None else Estimate(x, None, None, self.n)
        named |= {f"alpha_at.{i}": at for i, at in enumerate(self.alpha_at, start=1)}
        named |= {f"sibling_at.{i}": at for i, at in enumerate(self.sibling_at, start=1)}
        named |= {f"quality.{name}": value for name, value in self.quality.items()}
        return named | {f"terms.{name}": value for name, value in self.terms.items()}


FIGURES = frozenset(f.name for f in fields(Summary) if f.type == Estimate | None)
"""The fields that hold one estimate."""


def time_quantiles(times: Floats) -> dict[str, float | None] | None:
    """Return `sd`, `p50`, `p90`, `p99`, None below 2, 1, 10, 100 times; None alone: no times."""
    if not len(times):
        return None
    quantiles: dict[str, float | None] = {
        f"p{p}": float(np.percentile(times, p)) if len(times) >= fewest else None
        for p, fewest in ((50, 1), (90, 10), (99, 100))
    }
    return {"sd": float(times.std(ddof=1)) if len(times) > 1 else None} | quantiles


HORIZON = 128
"""The tokens of the time to the horizon: those of Figure 1 (Chen et al. 2023)."""

DEFINED = ("block_efficiency", "efficiency", "accepted_length")
"""Figures that are 1 or 0 by definition where K = 0, over any samples."""

Of = TypeVar("Of")


def summaries(
    cells: Sequence[Cell],
    records: Iterable[Record],
    scores: Iterable[Score] = (),
    *,
    combine: Callable[[Cell], Combine] = lambda cell: average,
    horizon: int = HORIZON,
    by_group: bool = False,
) -> list[Summary]:
    """Return one summary a cell, in the order of `cells`; figures are None without records.

    Records and scores are streamed once; ValueError: one of another cell. `combine` returns the way
    of a cell's task from scores to one value a sample. `horizon` is the number of tokens whose
    decode time is a figure, at most a cell's budget. `by_group` puts the summaries of all cells in
    each group of the records (in order of appearance, "" for none) before those of all.
    """
    groups: dict[str | None, dict[str, Tally]] = {None: tallies(cells, horizon)}
    group_of: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for record in records:
        number = numbers.setdefault(record.sample, len(numbers))
        tally_of(record.cell, groups[None]).add(record, number)
        if by_group:
            group = group_of[record.sample] = record.group or ""
            if group not in groups:
                groups[group] = tallies(cells, horizon)
            groups[group][record.cell].add(record, number)
    by_cell: dict[str, list[Score]] = {cell.id: [] for cell in cells}
    for score in scores:
        tally_of(score.cell, by_cell).append(score)

    rows: list[Summary] = []
    for name in sorted(groups, key=lambda group: group is None):  # all records last
        for cell in cells:
            of_group = [s for s in by_cell[cell.id] if name in (None, group_of.get(s.sample))]
            base, tally = baseline(cell, cells), groups[name][cell.id]
            gained = {} if base is None else baseline_gains(groups[name][base.id], tally, cell.k)
            rows.append(_summary(cell, name, tally, gained, qualities(of_group, combine(cell))))
    return rows


def tallies(cells: Sequence[Cell], horizon: int = HORIZON) -> dict[str, Tally]:
    """Return cell id -> empty tally by its own K, timing `horizon` tokens or its smaller budget."""
    batched = any(cell.batch > 1 for cell in cells)
    return {
        cell.id: Tally(
            SLOTS if cell.k is None else min(cell.k, SLOTS),
            min(horizon, cell.max_new_tokens) if cell.max_new_tokens else horizon,
            cell.k or 0,
            batched_run=batched,
        )
        for cell in cells
    }


def _summary(
    cell: Cell,
    group: str | None,
    tally: Tally,
    gained: Mapping[str, Estimate | None],
    quality: Qualities,
) -> Summary:
    """Return the summary of a cell's tally, with its gains by name and its quality by sample.

    Times under load stand in, marked, for a figure that has no undisturbed one. Where K = 0 the
    figures of `DEFINED` are exact. A measure of the process is the greatest value of all
    generations.
    """
    rows = tally.rows
    jackknife, quiet = tally.jackknife(rows), without_loaded(rows)
    figures = {
        name: jackknife.estimate(rate, AT[rate.denominator], rate.scale)
        for name, rate in RATES.items()
        if name not in OF_TIME
    }

    def per_slot(sums: Floats) -> Floats:
        """Return emitted tokens over the most that rounds can emit; a chain drafts K tokens."""
        rounds = sums[..., AT["rounds"]]
        drafts = (cell.k or 0) * (rounds - sums[..., AT["trees"]]) + sums[..., AT["tree_depth"]]
        return np.asarray(sums[..., AT["round_tokens"]] / (rounds + drafts))

    def kept_shares(first: int, count: int) -> Iterator[Estimate | None]:
        """Yield kept / tested, or None, of `count` columns from `first`, before as many tested."""
        for kept in range(first, first + count):
            yield jackknife.estimate(ratio_of(kept, kept + count), kept + count, CHANCE)

    if cell.k is not None:
        figures["efficiency"] = jackknife.estimate(per_slot, AT["rounds"], SHARE)
    if cell.k == 0:
        figures |= {name: e and e.certain for name, e in figures.items() if name in DEFINED}
    measured = {measure.figure: figures.pop(measure.figure, None) for measure in MEASURES}
    measured |= {
        measure.figure: Estimate(float(values.max()), None, None, len(values))
        for measure in MEASURES
        if measure.per == "process"
        and len(values := rows[rows[:, AT[f"of.{measure.field}"]] > 0, AT[f"sum.{measure.field}"]])
    }
    times = _times(tally.jackknife(quiet), quiet)
    timed, undisturbed = int(rows[:, AT["timed"]].sum()), int(quiet[:, AT["timed"]].sum())
    if undisturbed < timed:
        for name, estimate in _times(jackknife, rows).items():
            times[name] = times[name] or (estimate and estimate._replace(loaded=True))
    figures |= times
    return Summary(
        cell=cell,
        group=group,
        samples=len({sample for sample, _ in tally.keys}),
        n=len(rows),
        failures=tally.failures,
        cut=len(tally.cut),
        timed=undisturbed,
        loaded=timed - undisturbed,
        horizon=tally.horizon,
        alpha_at=tuple(kept_shares(len(AT), tally.slots)),
        sibling_at=tuple(filter(None, kept_shares(len(AT) + 2 * tally.slots, SIBLINGS))),
        spread=time_quantiles(MS * quiet[quiet[:, AT["reached"]] > 0, AT["horizon"]]),
        **figures,
        **gained,
        measured=measured,
        quality={
            name: of_means(np.array(list(v.values())), greatest(name))
            for name, v in quality.items()
        },
        terms={},
    )


def _times(jackknife: Jackknife, rows: Floats) -> dict[str, Estimate | None]:
    """Return figures of time by name: `OF_TIME` and `verify_share`.

    The shares, `draft_pass_ms` and `target_pass_ms` are None where no round was timed by parts.
    """
    figures = {
        name: jackknife.estimate(RATES[name], AT[RATES[name].denominator], RATES[name].scale)
        for name in OF_TIME
    }
    if not rows[:, AT["split"]].any():  # parts of rounds were not measured
        figures |= {"draft_pass_ms": None, "target_pass_ms": None}

    def verify_share(sums: Floats) -> Floats:
        return 1 - (sums[..., AT["draft"]] + sums[..., AT["target"]]) / sums[..., AT["split"]]

    return figures | {"verify_share": jackknife.estimate(verify_share, AT["split"], SHARE)}


def tally_of(cell: str, of: Mapping[str, Of]) -> Of:
    """Return what belongs to a cell by its id; ValueError: the cell is not of the run."""
    try:
        return of[cell]
    except KeyError:
        raise ValueError(f"cell {cell!r} is not among the {len(of)} cells of the run") from None
