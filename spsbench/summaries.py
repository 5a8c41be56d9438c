"""Records and scores -> summaries, each generation reduced to its sums as it streams by."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from spsbench.gains import Gains, baseline, gains
from spsbench.intervals import Estimate, Floats, of_means, over
from spsbench.metrics import MS
from spsbench.quality import Combine, Qualities, average, qualities
from spsbench.results import Cell, Record, Score
from spsbench.summary import Summary, spread
from spsbench.totals import AT, SLOTS, Tally, Totals

HORIZON = 128
"""Tokens whose time is taken: those of Figure 1 (Chen et al. 2023)."""

Of = TypeVar("Of")


def summaries(
    cells: Sequence[Cell],
    records: Iterable[Record],
    scores: Iterable[Score] = (),
    *,
    combine: Callable[[Cell], Combine] = lambda cell: average,
    horizon: int = HORIZON,
) -> list[Summary]:
    """One summary a cell, in the order of `cells`; a cell without records has figures of None.

    Records and scores are read once and reduced as they come. `combine` gives each cell its task's
    way from scores to one value a sample.

    Raises:
        ValueError: a record or score of a cell that is not in `cells`.
    """
    tallies = {
        cell.id: Tally(SLOTS if cell.k is None else min(cell.k, SLOTS), _horizon(cell, horizon))
        for cell in cells
    }
    numbers: dict[str, int] = {}
    for record in records:
        _known(record.cell, tallies).add(record, numbers.setdefault(record.sample, len(numbers)))
    by_cell: dict[str, list[Score]] = {cell.id: [] for cell in cells}
    for score in scores:
        _known(score.cell, by_cell).append(score)

    made = []
    for cell in cells:
        base = baseline(cell, cells)
        own = tallies[cell.id]
        gained = Gains() if base is None else gains(tallies[base.id], own, cell.k)
        made.append(_summary(cell, own, gained, qualities(by_cell[cell.id], combine(cell))))
    return made


def _summary(cell: Cell, tally: Tally, gained: Gains, quality: Qualities) -> Summary:
    rows, bootstrap = tally.rows, tally.bootstrap()
    parted = bool(rows[:, AT["parted"]].any())  # else nobody looked inside the rounds

    def rate(numerator: str, denominator: str, *, measured: bool = True) -> Estimate | None:
        columns = AT[numerator], AT[denominator]
        return bootstrap.estimate(over(*columns), columns[1]) if measured else None

    def ms(numerator: str, denominator: str, *, measured: bool = True) -> Estimate | None:
        return scaled(rate(numerator, denominator, measured=measured), MS)

    def with_prefill(sums: Floats) -> Floats:
        return (sums[..., AT["seconds"]] + sums[..., AT["prefill"]]) / sums[..., AT["timed_tokens"]]

    def rest(sums: Floats) -> Floats:
        return 1 - (sums[..., AT["draft"]] + sums[..., AT["target"]]) / sums[..., AT["parted"]]

    first = len(Totals._fields)
    tau = rate("tokens", "rounds")
    return Summary(
        cell=cell,
        samples=len({sample for sample, _ in tally.keys}),
        n=len(rows),
        failures=tally.failures,
        cut=len(tally.cut),
        timed=int(rows[:, AT["timed"]].sum()),
        horizon=tally.horizon,
        alpha=rate("overlap", "overlap_tested"),
        alpha_counted=rate("kept", "tested"),
        alpha_at=tuple(
            bootstrap.estimate(over(first + i, first + tally.slots + i), first + tally.slots + i)
            for i in range(tally.slots)
        ),
        draft_acceptance=rate("accepted", "drafted"),
        block_efficiency=tau,
        efficiency=None if cell.k is None else scaled(tau, 1 / (cell.k + 1)),
        accepted_length=rate("accepted", "rounds"),
        mean_token_time_ms=ms("seconds", "timed_tokens"),
        token_time_with_prefill_ms=scaled(bootstrap.estimate(with_prefill, AT["timed_tokens"]), MS),
        loop_time_ms=ms("seconds", "timed_rounds"),
        horizon_time_ms=ms("horizon", "reached"),
        spread=spread(MS * rows[rows[:, AT["reached"]] > 0, AT["horizon"]]),
        ttft_ms=ms("first", "started"),
        prefill_ms=ms("prefill", "timed"),
        draft_share=rate("draft", "parted"),
        target_share=rate("target", "parted"),
        verify_share=bootstrap.estimate(rest, AT["parted"]),
        draft_pass_ms=ms("draft", "timed_drafted", measured=parted),
        target_pass_ms=ms("target", "timed_rounds", measured=parted),
        **gained._asdict(),
        quality={name: of_means(np.array(list(v.values()))) for name, v in quality.items()},
    )


def scaled(estimate: Estimate | None, factor: float) -> Estimate | None:
    """The same estimate in another unit."""
    if estimate is None:
        return None
    low, high = (None if bound is None else factor * bound for bound in estimate[1:3])
    return Estimate(factor * estimate.mean, low, high, estimate.n)


def _horizon(cell: Cell, horizon: int) -> int:
    return min(horizon, cell.max_new_tokens) if cell.max_new_tokens else horizon


def _known(cell: str, of: Mapping[str, Of]) -> Of:
    try:
        return of[cell]
    except KeyError:
        raise ValueError(f"cell {cell!r} is not among the {len(of)} cells of the run") from None
