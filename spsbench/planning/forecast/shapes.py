"""Drafts of other shapes: what they would cost, and how often they would have to be right.

The question of Chen et al. 2023, Table 2: wide and shallow, or narrow and deep?
"""

from collections.abc import Iterator, Sequence
from typing import Any

from spsbench.planning.forecast.cost_tables import standing
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.grid import Grid, digits, ms
from spsbench.planning.forecast.needed import by_gain, in_words, plain
from spsbench.planning.forecast.shape import ShapeCost

GAINS = (1.0, 1.5, 2.0)
K = 4  # at which a draft's time is shown


def shape_rows(costs: Costs, drafts: Sequence[ShapeCost]) -> list[dict[str, Any]]:
    """A row a draft, in plain values: times in seconds, a figure x with x.low and x.high."""
    return [_row(costs, each) for each in sorted(drafts, key=lambda each: each.shape)]


def shape_table(costs: Costs, drafts: Sequence[ShapeCost]) -> Grid:
    """The drafts by width, and what can be said of wide and narrow ones."""
    context = _context(costs)
    rows = []
    for each in sorted(drafts, key=lambda each: each.shape):
        one, c = costs.draft(each.arm, K, context), costs.relative(each.arm, K, context)
        least = None if not costs.bandwidth or not each.read else each.read / costs.bandwidth
        rows.append(
            [
                f"{each.shape}" + (f" ({each.model})" if each.model else ""),
                "n/a" if each.numbers is None else f"{digits(each.numbers / 1e6)} M",
                ms(one._replace(**{n: v / K for n, v in one._asdict().items()}), interval=True),
                "n/a" if least is None else digits(1e3 * least),
                digits(c.value),
                *map(in_words, by_gain(costs, each.arm, context, GAINS).values()),
            ]
        )
    headings = ["width x layers", "numbers", "a token, ms", "memory, ms", "c", "pays from alpha"]
    headings += [f"{gain:g}x from alpha" for gain in GAINS[1:]]
    target = costs.target(1, context)
    remarks = [
        f"A pass of the target over one token takes {ms(target, interval=True)} ms after {context} "
        "tokens. c is a draft's token in such passes; memory is the least time for the draft's "
        "weights.",
        "alpha is the share of tested tokens that must be kept, with the K that needs the least; "
        "weights are random, so how many would be kept is not known.",
        *comparisons(costs, drafts),
        *standing(costs),
    ]
    return Grid("Drafts of other shapes", headings, rows, remarks)


def comparisons(costs: Costs, drafts: Sequence[ShapeCost]) -> Iterator[str]:
    """Of wide and shallow drafts, each beside the nearest in size that is narrower and deeper."""
    for wide in drafts:
        others = [
            (max(wide.numbers / each.numbers, each.numbers / wide.numbers), each)
            for each in drafts
            if each.shape.width < wide.shape.width and each.shape.depth > wide.shape.depth
            if each.numbers and wide.numbers
        ]
        if not others:
            continue
        deep = min(others, key=lambda other: other[0])[1]
        share = costs.compared(wide.arm, deep.arm, K, _context(costs))
        size = (wide.numbers or 0) / (deep.numbers or 1)
        yield (
            f"{wide.shape} takes {digits(share.value)} ({digits(share.low)} to "
            f"{digits(share.high)}) of the time of {deep.shape}, with {digits(size)} times its "
            "numbers."
        )


def _row(costs: Costs, each: ShapeCost) -> dict[str, Any]:
    context = _context(costs)
    draft, c = costs.draft(each.arm, K, context), costs.relative(each.arm, K, context)
    return {
        "width": each.shape.width,
        "layers": each.shape.depth,
        "model": each.model or None,
        "numbers": each.numbers,
        "token_seconds": draft.value / K,
        "token_seconds.low": draft.low / K,
        "token_seconds.high": draft.high / K,
        "memory_seconds": each.read / costs.bandwidth if each.read and costs.bandwidth else None,
        "c": c.value,
        "c.low": c.low,
        "c.high": c.high,
        "needed": plain(by_gain(costs, each.arm, context, GAINS)),
    }


def _context(costs: Costs) -> int:
    return costs.passes.contexts[-1]
