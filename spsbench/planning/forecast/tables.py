"""Tables of measured and forecast costs as text: passes, rounds and draft shapes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spsbench.hardware.files import in_words
from spsbench.metrics.costs import PLAIN, SCALED, Costs
from spsbench.metrics.surfaces import digits, ms, typical
from spsbench.planning.forecast.break_even import (
    alpha_in_words,
    by_gain,
    needed_values,
)
from spsbench.planning.forecast.links_and_shapes import ShapeCost
from spsbench.reports.figures import TextTable

SHOWN = (2, 3, 5, 9, 17, 33)  # tokens of a pass
PARTS = ("draft", "target", "sampling", "verify", "host", "unexplained", "total")


def cost_tables(costs: Costs) -> list[TextTable]:
    """Return tables of the target's passes, of their parts, and of every drafter's rounds."""
    return [passes(costs), *pass_parts(costs), rounds(costs)]


def passes(costs: Costs) -> TextTable:
    """Return a table of a pass over one token, and v(n) of larger passes, by context."""
    sizes = [n for n in SHOWN if n <= costs.passes.tokens[-1]]
    rows = [
        [
            str(context),
            ms(costs.target(1, context), interval=True),
            *(digits(costs.v(n, context).value) for n in sizes),
        ]
        for context in costs.passes.contexts
    ]
    headings = ["cached tokens", "1 token, ms", *(f"v({n})" for n in sizes)]
    remarks = ["v(n) is a pass over n tokens in passes over one."]
    if (limit := costs.limit()) is not None and costs.weights and costs.bandwidth:
        share = limit / costs.target(1, costs.passes.contexts[0]).value
        remarks.append(
            f"Memory alone would allow {digits(1e3 * limit)} ms: {in_words(costs.weights)} of "
            f"weights at {in_words(costs.bandwidth)} a second. A pass over one token reaches "
            f"{share:.0%} of that speed."
        )
    return TextTable("The target alone", headings, rows, remarks)


def pass_parts(costs: Costs) -> Iterator[TextTable]:
    """Yield a table of the parts of a pass, and of the loop around it, by tokens, if measured."""
    if costs.parts is None:
        return
    surfaces = dict(costs.parts)
    linear = surfaces["linear layers"]
    context, sizes = linear.contexts[0], linear.tokens
    for name, rule in list(costs.rules.items())[:1]:
        surfaces |= {"law": rule.sampling, f"rule {name}": rule.verify, "loop": rule.host}
    seconds = {
        part: [typical(surface.at(n, context), costs.busy) for n in sizes]
        for part, surface in surfaces.items()
    }
    whole = sum(one.value for one, *_ in seconds.values())
    rows = [
        [
            part,
            *map(ms, (one, *more)),
            f"{one.value / whole:.0%}",
            *(digits(larger.value / one.value) if one.value else "n/a" for larger in more),
        ]
        for part, (one, *more) in seconds.items()
    ]
    headings = ["part", *(f"{n} token{'s' * (n > 1)}, ms" for n in sizes), f"share of {sizes[0]}"]
    headings += [f"v({n})" for n in sizes[1:]]
    seconds_of_one = np.sum([part.at(sizes[0], context) for part in costs.parts.values()], 0)
    modules = typical(seconds_of_one, costs.busy)
    remarks = [
        f"Modules as eager calls them, {ms(modules)} ms in all; a pass of the target's own engine "
        f"takes {ms(costs.target(sizes[0], context))} ms. rest: embeddings, activations, masks, "
        "Python. law: logits to distributions. loop: noise, the verdict, bookkeeping.",
        "Linear layers read their weights once a pass, however few tokens it has: while memory "
        "bounds them, K + 1 tokens cost about as much as one.",
    ]
    yield TextTable(f"A pass by part, after {context} tokens", headings, rows, remarks)


def rounds(costs: Costs) -> TextTable:
    """Return a table of the parts of a round by drafter and K, at the middle context."""
    contexts = costs.passes.contexts
    at = contexts[len(contexts) // 2]
    rows = []
    for name, arm in costs.arms.items():
        for k in arm.draft.tokens:
            drafted = costs.drafted(name, k, at)
            cost = costs.round_seconds(name, k, at, drafted=drafted)
            share = "" if k == 0 else digits(costs.relative(name, k, at).value)
            parts = [ms(getattr(cost, part)) for part in PARTS[:-1]]
            rows.append(
                [name, str(k), digits(drafted), *parts, ms(cost.total, interval=True), share]
            )
    headings = ["drafter", "K", "drafted", *PARTS[:-2], "not explained", "a round, ms", "c"]
    remarks = ["c is what one of K drafted tokens costs, in passes of the target over one token."]
    remarks += [*residuals(costs, at), *standing(costs)]
    return TextTable(f"A round by part, after {at} tokens, ms", headings, rows, remarks)


def residuals(costs: Costs, context: int) -> Iterator[str]:
    """Yield the unexplained time of each drafter as a line, whatever its size."""
    for name, arm in costs.arms.items():
        k = arm.draft.tokens[len(arm.draft.tokens) // 2]
        unexplained, inside = costs.unexplained(name, k, context), costs.inside(name, k, context)
        what = "ArS" if name == PLAIN else f"{name}, K = {k}"
        yield (
            f"Fixed per round ({what}): {ms(unexplained, interval=True)} ms, not explained; "
            f"{ms(inside)} of it in the target's pass, which takes that much longer between "
            "drafts than alone."
        )


def standing(costs: Costs) -> Iterator[str]:
    """Yield the conditions of the measurement."""
    yield f"Medians of {costs.turns} turns with 95 % intervals; each turn measures everything once."
    if costs.busy:
        share = "Other work" if costs.others is None else f"Other work had {costs.others:.0%} of"
        yield (
            f"{share} the processors meanwhile: intervals are from the least that was seen to all "
            "but the slowest tenth. End it (top shows it) and measure again for times that count."
        )
    for part in SCALED:
        if part in costs.changed:
            yield f"As if {part} took {costs.changed[part]:g} times as long as it was measured."


SHAPE_GAINS = (1.0, 1.5, 2.0)
K = 4  # K at which the draft time is shown


def shape_rows(costs: Costs, drafts: Sequence[ShapeCost]) -> list[dict[str, Any]]:
    """Return a row for each draft in plain values: seconds, a figure x with x.low and x.high."""
    return [_row(costs, draft) for draft in sorted(drafts, key=lambda draft: draft.shape)]


def shape_table(costs: Costs, drafts: Sequence[ShapeCost]) -> TextTable:
    """Return a table of drafts by width, with a comparison of wide and narrow drafts."""
    context = _context(costs)
    rows = []
    for draft in sorted(drafts, key=lambda draft: draft.shape):
        one, c = costs.draft(draft.arm, K, context), costs.relative(draft.arm, K, context)
        least = None if not costs.bandwidth or not draft.read else draft.read / costs.bandwidth
        rows.append(
            [
                f"{draft.shape}" + (f" ({draft.model})" if draft.model else ""),
                "n/a" if draft.numbers is None else f"{digits(draft.numbers / 1e6)} M",
                ms(one._replace(**{n: v / K for n, v in one._asdict().items()}), interval=True),
                "n/a" if least is None else digits(1e3 * least),
                digits(c.value),
                *map(alpha_in_words, by_gain(costs, draft.arm, context, SHAPE_GAINS).values()),
            ]
        )
    headings = ["width x layers", "numbers", "a token, ms", "memory, ms", "c", "pays from alpha"]
    headings += [f"{gain:g}x from alpha" for gain in SHAPE_GAINS[1:]]
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
    return TextTable("Drafts of other shapes", headings, rows, remarks)


def comparisons(costs: Costs, drafts: Sequence[ShapeCost]) -> Iterator[str]:
    """Yield comparisons of wide, shallow drafts with the nearest narrower, deeper draft in size."""
    for wide in drafts:
        others = [
            (max(wide.numbers / deeper.numbers, deeper.numbers / wide.numbers), deeper)
            for deeper in drafts
            if deeper.shape.width < wide.shape.width and deeper.shape.depth > wide.shape.depth
            if deeper.numbers and wide.numbers
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


def _row(costs: Costs, shape_cost: ShapeCost) -> dict[str, Any]:
    context = _context(costs)
    draft, c = costs.draft(shape_cost.arm, K, context), costs.relative(shape_cost.arm, K, context)
    return {
        "width": shape_cost.shape.width,
        "layers": shape_cost.shape.depth,
        "model": shape_cost.model or None,
        "numbers": shape_cost.numbers,
        "token_seconds": draft.value / K,
        "token_seconds.low": draft.low / K,
        "token_seconds.high": draft.high / K,
        "memory_seconds": shape_cost.read / costs.bandwidth
        if shape_cost.read and costs.bandwidth
        else None,
        "c": c.value,
        "c.low": c.low,
        "c.high": c.high,
        "needed": needed_values(by_gain(costs, shape_cost.arm, context, SHAPE_GAINS)),
    }


def _context(costs: Costs) -> int:
    return costs.passes.contexts[-1]
