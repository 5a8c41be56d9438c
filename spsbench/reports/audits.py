"""Audits as sections and figures, from the values that `sps verify --json` prints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spsbench.reports.reporter import (
    Figure,
    Level,
    Panel,
    Point,
    Section,
    Status,
    TextTable,
    curves,
)

LOWEST = -3.0  # lower end of the axis; a smaller e-value is drawn here

EProcess = Sequence[tuple[int, float]]
"""(tokens, log10 of the e-value)."""


def e_process_figure(processes: Mapping[str, EProcess], alarm: float, title: str) -> Figure:
    """Return the plot of e-processes by name, cut at `LOWEST`; `alarm` is log10 of a rejection."""
    named = ((name, [Point(x, max(y, LOWEST)) for x, y in e]) for name, e in processes.items())
    level, y = Level(name="alarm", y=alarm), "log10 of the e-value"
    panel = Panel(x="tokens", y=y, items=[*curves(named, dense=True), level])
    return Figure(title=title, panels=[panel])


Values = Mapping[str, Any]
"""Values of an audit, by `of_finding` or `of_greedy`, with `name` and `settings`."""

SHOWN = 20  # rows of failures in the table
IMPOSSIBLE = {"text": "text", "position": "position", "token": "token", "reason": "why"}
WORDS, COUNT, SHARE = "", ",", ".4f"
TESTS = {"direction": WORDS, "stratum": WORDS, "tokens": COUNT, "observed": SHARE}
TESTS |= {"expected": SHARE, "bias": f"+{SHARE}", "z": "+.2f"}
"""Maps the heading of a test to its format."""
WIRINGS: Mapping[str, Status] = {"right": "good", "not distinguished": "open"}
STATUSES: Mapping[str, Status] = {"held": "good", "bias found": "bad"}
E_PROCESS = (
    "An e-process tests the claim that every token follows the target's distribution. If the "
    "claim holds, it ever reaches the alarm with at most the stated probability, at whatever time "
    "it is read. Tokens of plain sampling (ArS) are tested as well: their line must stay below the "
    "alarm, too."
)
GREEDY = (
    "At temperature 0 each text must equal the target's, token for token. A tie is a position "
    "where rounding decides between two tokens that the target finds equally likely."
)


def audit_section(audit: Values, run: str = "", records: int | None = None) -> Section:
    """Return the section of one audit, with a note if the run's `records` changed since.

    `run` is the title of the run's table; "": the audit generated its own texts. `records` counts
    those of the run now; None: they are not compared.
    """
    notes = []
    settings = audit.get("settings") or {}
    examined = settings.get("records")
    if records is not None and examined is not None and examined != records:
        notes.append(f"Made when there were {examined:,} records; now there are {records:,}.")
    further_notes, figures, tables = _greedy(audit) if "prompts" in audit else _sampled_parts(audit)
    return Section(
        title=f"Audit: {audit['name']}",
        status=STATUSES.get(audit["verdict"], "open"),
        line=audit["line"],
        notes=[*notes, *further_notes, *filter(None, [audit.get("advice")])],
        says=GREEDY if "prompts" in audit else E_PROCESS,
        figures=figures,
        tables=tables,
        run=run,
        cell=str(settings.get("id", "")),
    )


def wiring_section(values: Values) -> Section:
    """Return the section of a search for a head's wiring: wirings, best first, then controls."""
    rows = []
    for wiring in sorted(values["wirings"], key=lambda wiring: -wiring["accepted"]):
        name = ",".join(f"{flag}={value}" for flag, value in wiring["flags"].items())
        shares = [f"{share:.3f}" for share in wiring["by_depth"]]
        rows.append((name or "as declared", f"{wiring['accepted']:.3f}", *shares))
    depths = [f"{d + 1} or more" for d in range(len(values["wirings"][0]["by_depth"]))]
    for name, level in values["controls"].items():
        rows.append((f"control: {name}", f"{level:.3f}", *("" for _ in depths)))
    return Section(
        title="Wirings of a head, and the tokens that a draft keeps",
        status=WIRINGS.get(values["verdict"], "bad"),
        line=values["line"],
        tables=(TextTable("", ("wiring", "kept", *depths), rows),),
    )


Parts = tuple[list[str], list[Figure], list[TextTable]]
"""Notes, figures and tables of an audit."""


def _sampled_parts(audit: Values) -> Parts:
    """Return notes, the e-process and tables of an audit of sampled texts, first SpS, then ArS."""
    methods = audit["sps"], audit["controls"]["ars"]
    alarm = audit["alarm_log10"]
    notes = [
        f"{method['name']}: {method['tokens']:,} tokens of {method['texts']:,} texts, largest "
        f"e-value 10^{method['e_value_log10']:.2f} (alarm at 10^{alarm:.2f})."
        for method in methods
    ]
    if (injected := audit["controls"]["injected"]) is not None:
        notes.append(
            f"Control: an injected bias of {injected['bias']:.3g} was caught in "
            f"{injected['caught']} of {injected['repeats']} repeats."
        )
    processes = {method["name"]: method["curve"] for method in methods}
    figure = e_process_figure(processes, alarm, "E-process against the target's distribution")
    return notes, [figure], [table for method in methods for table in _of_method(method)]


def _of_method(method: Values) -> list[TextTable]:
    """Return the tables, if any, of a method: tests, and tokens of target probability 0."""
    rows = [[format(test[name], form) for name, form in TESTS.items()] for test in method["tests"]]
    tables = [TextTable(f"Tokens of {method['name']}", [*TESTS], rows, names=2)] * bool(rows)
    wrong = [[str(token[name]) for name in IMPOSSIBLE] for token in method["impossible"]]
    caption = f"Impossible tokens of {method['name']}"
    return tables + _first_rows(caption, IMPOSSIBLE.values(), wrong, method["impossible_count"])


def _first_rows(
    caption: str, headings: Iterable[str], rows: Sequence[Sequence[str]], count: int, names: int = 1
) -> list[TextTable]:
    """Return [table] of the first `SHOWN` of `count` rows, as its title tells; [] without rows."""
    first = f", the first {min(SHOWN, len(rows))}" if count > min(SHOWN, len(rows)) else ""
    table = TextTable(f"{caption}: {count:,}{first}", [*headings], rows[:SHOWN], names=names)
    return [table] if rows else []


def _greedy(audit: Values) -> Parts:
    """Return lists of a greedy audit: notes, no figures, and a table of differing texts, if any."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in audit["counts"].items())
    controls = audit["controls"]
    notes = [
        f"Texts: {counts}.",
        f"Controls: ArS against itself is {'' if controls['ars_repeats'] else 'NOT '}identical; a "
        f"planted wrong token was {'' if controls['planted_bug_caught'] else 'NOT '}called a bug.",
    ]
    apart = [prompt for prompt in audit["prompts"] if prompt["divergence"] is not None]
    rows = [*map(_divergence_row, apart)]
    headings = ("prompt", "kind", "position", "tokens", "logits", "gap", "rounding")
    return notes, [], _first_rows("Texts that differ from ArS", headings, rows, len(rows), names=2)


def _divergence_row(prompt: Values) -> tuple[str, ...]:
    """Return name, kind, position, tokens, logits ("": none), gap and tolerance as seven texts."""
    divergence = prompt["divergence"]
    return (
        str(prompt["name"]),
        str(prompt["kind"]),
        str(divergence["position"]),
        " / ".join(map(str, divergence["tokens"])),
        " / ".join(f"{x:.4f}" for x in prompt["logits"] or ()),
        f"{divergence['gap']:.3g}",
        f"{divergence['tolerance']:.3g}",
    )
