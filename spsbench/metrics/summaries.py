"""Records and scores -> summaries, each generation reduced to its sums as it streams by."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from spsbench.metrics.gains import Gains, baseline, gains
from spsbench.metrics.intervals import CHANCE, SHARE, Estimate, Floats, Jackknife, of_means, over
from spsbench.metrics.pairing import Arms
from spsbench.metrics.quality import Combine, Qualities, average, greatest, qualities
from spsbench.metrics.rates import MS, OF_TIME, RATES
from spsbench.metrics.summary import Summary, spread
from spsbench.metrics.sums import AT, SIBLINGS, SLOTS, Tally, Totals, quietly
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, Score

HORIZON = 128
"""Tokens whose time is taken: those of Figure 1 (Chen et al. 2023)."""

DEFINED = ("block_efficiency", "efficiency", "accepted_length")
"""Figures that are 1 or 0 by definition where K = 0, over any samples."""

WITH_LOAD = (*OF_TIME, "token_time_with_prefill_ms", "verify_share", *Gains._fields)
"""Figures that have a value over all timings beside the one over undisturbed timings."""

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
    """One summary a cell, in the order of `cells`; a cell without records has figures of None.

    Records and scores are read once and reduced as they come. `combine` gives each cell its task's
    way from scores to one value a sample. With `by_group`, those of each group of the records come
    first, then those of all.

    Raises:
        ValueError: a record or score of a cell that is not in `cells`.
    """
    every = tallies(cells, horizon)
    groups: dict[str, dict[str, Tally]] = {}
    group_of: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for record in records:
        number = numbers.setdefault(record.sample, len(numbers))
        _known(record.cell, every).add(record, number)
        if by_group:
            group = group_of[record.sample] = record.group or ""
            if group not in groups:
                groups[group] = tallies(cells, horizon)
            groups[group][record.cell].add(record, number)
    by_cell: dict[str, list[Score]] = {cell.id: [] for cell in cells}
    for score in scores:
        _known(score.cell, by_cell).append(score)

    made: list[Summary] = []
    for name, own in groups.items():
        parted = {
            cell: [score for score in all_scores if group_of.get(score.sample) == name]
            for cell, all_scores in by_cell.items()
        }
        made += _rows(cells, own, parted, combine, name)
    return [*made, *_rows(cells, every, by_cell, combine, None)]


def tallies(cells: Sequence[Cell], horizon: int = HORIZON) -> dict[str, Tally]:
    """An empty tally for each cell."""
    return {
        cell.id: Tally(
            SLOTS if cell.k is None else min(cell.k, SLOTS), _horizon(cell, horizon), cell.k or 0
        )
        for cell in cells
    }


def arms(cells: Sequence[Cell], records: Iterable[Record], numbers: dict[str, int]) -> Arms:
    """The tallies of a run; `numbers` takes those of its samples, and gives them in the next."""
    found = tallies(cells)
    for record in records:
        _known(record.cell, found).add(record, numbers.setdefault(record.sample, len(numbers)))
    return Arms(cells, found)


def _rows(
    cells: Sequence[Cell],
    tallies: Mapping[str, Tally],
    scores: Mapping[str, Sequence[Score]],
    combine: Callable[[Cell], Combine],
    group: str | None,
) -> Iterator[Summary]:
    for cell in cells:
        base = baseline(cell, cells)
        own = tallies[cell.id]
        every, quiet = Gains(), Gains()
        if base is not None:
            every = gains(tallies[base.id], own, cell.k)
            quiet = gains(tallies[base.id], own, cell.k, quiet=True)
        quality = qualities(scores[cell.id], combine(cell))
        yield _summary(cell, group, own, (every, quiet), quality)


def _summary(
    cell: Cell, group: str | None, tally: Tally, gained: tuple[Gains, Gains], quality: Qualities
) -> Summary:
    rows = tally.rows
    jackknife, quiet = tally.jackknife(rows), quietly(rows)
    known = {
        name: jackknife.estimate(rate, AT[rate.denominator], rate.scale)
        for name, rate in RATES.items()
        if name not in OF_TIME
    }

    def per_slot(sums: Floats) -> Floats:
        """Of all that the rounds could have brought: a chain is taken to have K tokens."""
        rounds = sums[..., AT["rounds"]]
        drafts = (cell.k or 0) * (rounds - sums[..., AT["trees"]]) + sums[..., AT["tree_depth"]]
        return np.asarray(sums[..., AT["tokens"]] / (rounds + drafts))

    if cell.k is not None:
        known["efficiency"] = jackknife.estimate(per_slot, AT["rounds"], SHARE)
    if cell.k == 0:
        known |= {name: e and e.certain for name, e in known.items() if name in DEFINED}
    known |= _times(tally.jackknife(quiet), quiet)
    timed, undisturbed = int(rows[:, AT["timed"]].sum()), int(quiet[:, AT["timed"]].sum())
    with_load: dict[str, Estimate | None] = {}
    if undisturbed < timed:
        with_load = _times(jackknife, rows) | gained[0]._asdict()
    chosen = gained[1] if gained[1].speedup else gained[0]  # pairs share their load
    first = len(Totals._fields)
    beside = first + 2 * tally.slots
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
        alpha_at=tuple(
            jackknife.estimate(over(kept, kept + tally.slots), kept + tally.slots, CHANCE)
            for kept in range(first, first + tally.slots)
        ),
        sibling_at=tuple(
            jackknife.estimate(over(kept, kept + SIBLINGS), kept + SIBLINGS, CHANCE)
            for kept in range(beside, beside + SIBLINGS)
            if rows[:, kept + SIBLINGS].any()
        ),
        spread=spread(MS * quiet[quiet[:, AT["reached"]] > 0, AT["horizon"]]),
        **known,
        **chosen._asdict(),
        with_load=with_load,
        quality={
            name: of_means(np.array(list(v.values())), greatest(name))
            for name, v in quality.items()
        },
        terms={},
    )


def _times(jackknife: Jackknife, rows: Floats) -> dict[str, Estimate | None]:
    """The figures of time, of all rows or of the quiet ones."""
    known = {
        name: jackknife.estimate(RATES[name], AT[RATES[name].denominator], RATES[name].scale)
        for name in OF_TIME
    }
    if not rows[:, AT["parted"]].any():  # nobody looked inside the rounds
        known |= {"draft_pass_ms": None, "target_pass_ms": None}

    def with_prefill(sums: Floats) -> Floats:
        spent = sums[..., AT["seconds"]] + sums[..., AT["prefill"]]
        return MS * spent / sums[..., AT["timed_tokens"]]

    def rest(sums: Floats) -> Floats:
        return 1 - (sums[..., AT["draft"]] + sums[..., AT["target"]]) / sums[..., AT["parted"]]

    return known | {
        "token_time_with_prefill_ms": jackknife.estimate(with_prefill, AT["timed_tokens"]),
        "verify_share": jackknife.estimate(rest, AT["parted"], SHARE),
    }


def _horizon(cell: Cell, horizon: int) -> int:
    return min(horizon, cell.sampling.max_new_tokens) if cell.sampling.max_new_tokens else horizon


def _known(cell: str, of: Mapping[str, Of]) -> Of:
    try:
        return of[cell]
    except KeyError:
        raise ValueError(f"cell {cell!r} is not among the {len(of)} cells of the run") from None
