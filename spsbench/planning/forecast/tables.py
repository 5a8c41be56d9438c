"""Tables of measured and forecast costs as text: passes, rounds and draft shapes."""

from collections.abc import Iterator

from spsbench.hardware.files import in_words
from spsbench.metrics.costs import PLAIN, SCALED, Costs
from spsbench.metrics.surfaces import digits, ms
from spsbench.reports.reporter import TextTable

SHOWN = (2, 3, 5, 9, 17, 33)  # tokens of a pass
PARTS = ("draft", "target", "sampling", "verify", "host", "unexplained", "total")


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
