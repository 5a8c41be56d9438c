"""The record of a run as Markdown, for the README."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from arena.figures import (
    Spread,
    agreement,
    block_cost,
    outside_models,
    over_limit,
    over_turns,
    peak_bytes,
    steady_bytes,
    step,
)
from arena.goals import Result

NONE = "n/a"
MIB = 2**20
COLUMNS = (
    "engine", "arm", "ms/token", "τ", "ms/pass", "step(1)", "step(K+1)", "v(K)", "draft step",
    "step(1) / limit", "/ limit beside it", "memory MiB steady, peak", "load s", "as transformers",
)  # fmt: skip
MARKS = {"aim": "aim reached", "pass": "must reached", "miss": "**missed**", "": ""}


def engines_table(
    engines: Mapping[str, Mapping[str, Any]],
    limit_ms: float,
    bytes_: int,
    *,
    greedy: bool = True,
    failures: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A row for each arm of each engine; medians, with the least and the most of the repeats.

    An engine that failed has a row that says so, below those of the arms that it was through.
    Only greedy texts are compared with transformers': sampled ones differ by design.
    """
    reference = engines.get("hf", {}).get("turns", {}).get("ars", []) if greedy else []
    rows = [
        row
        for name, facts in engines.items()
        for row in _rows(name, facts, limit_ms, bytes_, reference)
    ]
    rows += [[name, "failed", *[NONE] * (len(COLUMNS) - 2)] for name in failures]
    return markdown(COLUMNS, rows)


def _rows(
    name: str,
    facts: Mapping[str, Any],
    limit_ms: float,
    bytes_: int,
    reference: Sequence[Mapping[str, Any]],
) -> Iterator[list[str]]:
    if not facts["turns"]:
        return
    one, few = step(facts, "one"), "@" in name  # fewer bytes than the limit is of
    shared = [
        shown(one),
        shown(step(facts, "block")),
        shown(block_cost(facts), 2),
        shown(step(facts, "draft")),
        NONE if one is None or few else shown(Spread(*(value / limit_ms for value in one)), 2),
        NONE if few else shown(over_limit(facts, bytes_), 2),
        f"{steady_bytes(facts) / MIB:.0f}, {peak_bytes(facts) / MIB:.0f}",
        f"{min(load['seconds'] for load in facts['loads']):.1f}",
    ]
    for number, (arm, turns) in enumerate(facts["turns"].items()):
        figures = [
            shown(over_turns(facts, arm, lambda d: d.ms_per_token)),
            shown(over_turns(facts, arm, lambda d: d.tau), 2),
            shown(over_turns(facts, arm, lambda d: d.ms_per_pass)),
        ]
        of_engine = shared if number == 0 else [""] * len(shared)
        yield [name if number == 0 else "", arm, *figures, *of_engine, same(turns, reference)]


def same(turns: Sequence[Mapping[str, Any]], reference: Sequence[Mapping[str, Any]]) -> str:
    """In how many repeats the text is that of transformers' plain greedy decoding."""
    pairs = list(zip(turns, reference, strict=False))
    equal = sum(agreement(turn, ref) is None for turn, ref in pairs)
    return f"{equal} of {len(pairs)}" if pairs else NONE


def goals_table(results: Sequence[Result]) -> str:
    """Ratios, smaller is better, beside what they are held to."""
    rows = [
        [
            result.what,
            shown(result.value, 2),
            *(
                [f"{result.goal.must:g}", f"{result.goal.aim:g}", MARKS[result.verdict]]
                if result.goal
                else ["", "", ""]
            ),
        ]
        for result in results
    ]
    return markdown(("ratio", "measured", "must", "aim", "verdict"), rows)


def overheads(engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines on the share of our rounds that is outside the models."""
    found = {name: outside_models(facts["turns"].get("sps", [])) for name, facts in engines.items()}
    return [
        f"{name}: {100 * share.median:.1f}% of a speculative round is outside drafter and target."
        for name, share in found.items()
        if share is not None
    ]


def shown(value: Spread | None, digits: int = 1) -> str:
    """`median (low to high)`."""
    if value is None:
        return NONE
    middle, low, high = (f"{number:.{digits}f}" for number in value)
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
