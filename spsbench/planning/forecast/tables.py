"""The table of measured costs as text: a round by part."""

from collections.abc import Iterator

from spsbench.metrics.costs import SCALED, Costs
from spsbench.metrics.surfaces import digits, ms
from spsbench.reports.reporter import TextTable

PARTS = ("draft", "target", "sampling", "verify", "host", "unexplained", "total")


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
    remarks += standing(costs)
    return TextTable(f"A round by part, after {at} tokens, ms", headings, rows, remarks)


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
