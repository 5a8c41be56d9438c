"""Records and scores -> summaries, each generation reduced to its sums as it streams by."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from spsbench.figures.gains import Gains, baseline, gains
from spsbench.figures.intervals import SHARE, Floats, of_means, over
from spsbench.figures.quality import Combine, Qualities, average, qualities
from spsbench.figures.rates import MS, RATES
from spsbench.figures.summary import Summary, spread
from spsbench.figures.sums import AT, SLOTS, Tally, Totals
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record, Score

HORIZON = 128
"""Tokens whose time is taken: those of Figure 1 (Chen et al. 2023)."""

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
    """One summary a cell, in the order of `cells`; a cell without records has figures of None.

    Records and scores are read once and reduced as they come. `combine` gives each cell its task's
    way from scores to one value a sample. With `by_group`, those of each group of the records come
    first, then those of all.

    Raises:
        ValueError: a record or score of a cell that is not in `cells`.
    """

    def tallies() -> dict[str, Tally]:
        return {
            cell.id: Tally(SLOTS if cell.k is None else min(cell.k, SLOTS), _horizon(cell, horizon))
            for cell in cells
        }

    every = tallies()
    groups: dict[str, dict[str, Tally]] = {}
    group_of: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for record in records:
        number = numbers.setdefault(record.sample, len(numbers))
        _known(record.cell, every).add(record, number)
        if by_group:
            group = group_of[record.sample] = record.group or ""
            if group not in groups:
                groups[group] = tallies()
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
        gained = Gains() if base is None else gains(tallies[base.id], own, cell.k)
        quality = qualities(scores[cell.id], combine(cell))
        yield _summary(cell, group, own, gained, quality)


def _summary(
    cell: Cell, group: str | None, tally: Tally, gained: Gains, quality: Qualities
) -> Summary:
    rows, jackknife = tally.rows, tally.jackknife()
    known = {
        name: jackknife.estimate(rate, AT[rate.denominator], rate.scale)
        for name, rate in RATES.items()
    }
    if not rows[:, AT["parted"]].any():  # nobody looked inside the rounds
        known |= {"draft_pass_ms": None, "target_pass_ms": None}

    def with_prefill(sums: Floats) -> Floats:
        spent = sums[..., AT["seconds"]] + sums[..., AT["prefill"]]
        return MS * spent / sums[..., AT["timed_tokens"]]

    def rest(sums: Floats) -> Floats:
        return 1 - (sums[..., AT["draft"]] + sums[..., AT["target"]]) / sums[..., AT["parted"]]

    def per_slot(sums: Floats) -> Floats:
        return RATES["block_efficiency"](sums) / ((cell.k or 0) + 1)

    if cell.k is not None:
        known["efficiency"] = jackknife.estimate(per_slot, AT["rounds"], SHARE)
    known |= gained._asdict()
    if cell.k == 0:
        known |= {name: e and e.certain for name, e in known.items() if name in DEFINED}
    first = len(Totals._fields)
    return Summary(
        cell=cell,
        group=group,
        samples=len({sample for sample, _ in tally.keys}),
        n=len(rows),
        failures=tally.failures,
        cut=len(tally.cut),
        timed=int(rows[:, AT["timed"]].sum()),
        horizon=tally.horizon,
        alpha_at=tuple(
            jackknife.estimate(over(kept, kept + tally.slots), kept + tally.slots, SHARE)
            for kept in range(first, first + tally.slots)
        ),
        token_time_with_prefill_ms=jackknife.estimate(with_prefill, AT["timed_tokens"]),
        spread=spread(MS * rows[rows[:, AT["reached"]] > 0, AT["horizon"]]),
        verify_share=jackknife.estimate(rest, AT["parted"], SHARE),
        **known,
        quality={name: of_means(np.array(list(v.values()))) for name, v in quality.items()},
        terms={},
    )


def _horizon(cell: Cell, horizon: int) -> int:
    return min(horizon, cell.sampling.max_new_tokens) if cell.sampling.max_new_tokens else horizon


def _known(cell: str, of: Mapping[str, Of]) -> Of:
    try:
        return of[cell]
    except KeyError:
        raise ValueError(f"cell {cell!r} is not among the {len(of)} cells of the run") from None
