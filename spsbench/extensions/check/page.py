"""Results of a check as a sentence with tables, as JSON, or as an HTML page for an issue.

Names and texts come from servers: what is shown has no invisible characters, and is cut.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spsbench.extensions.check.check import Checked
from spsbench.extensions.check.laws import LawResult, Verdict
from spsbench.extensions.check.plan import finite
from spsbench.metrics.intervals import Estimate
from spsbench.reports.text import visible

MANY = 5  # greedy texts in the table
UNTOLD = "n/a"
LONGEST = 100  # characters of a name
LONGEST_LINE = 1000


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the names of columns, and cells."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def sentence(found: Checked) -> str:
    """Summarise the check in one sentence."""
    what = f"{found.url} ({named(found.engine)}, {named(found.model)})"
    parts = []
    if found.law is not None:
        mode = {
            "weights": "by the weights",
            "baseline": "by the baseline's prompt logprobs",
            "stated": "by its own logprobs",
        }[found.law.mode]
        parts.append(f"{mode}: {found.law.line}")
    elif "law" in found.plan.parts:
        parts.append("the law of its text cannot be told from what it gives")
    if found.greedy is not None:
        parts.append(f"greedy text {found.greedy.line}")
    if found.ratios:
        best = found.ratios[0]
        parts.append(f"speed-up {estimated(best.tpot)} at {best.concurrency} request(s) at a time")
    verdict = {
        Verdict.HELD: "HELD",
        Verdict.BIAS: "BIAS FOUND",
        Verdict.UNKNOWN: "CANNOT BE TOLD",
        Verdict.NOT_AUDITED: "NOT AUDITED",
    }[found.verdict]
    if found.verdict is Verdict.NOT_AUDITED:
        parts.append("speed alone was measured, which says nothing of the text")
    told = ". ".join(part[:1].upper() + part[1:] for part in parts)
    return printable(f"{verdict}: {what}. {told}.")


def named(name: str) -> str:
    """Return a name that a server gives, visible and cut."""
    name = visible(name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}..."


def printable(text: str) -> str:
    """Return a text in one line, visible and cut."""
    text = visible(text)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def tables(found: Checked) -> list[Table]:
    """Return the tables of all figures."""
    made = []
    if found.law is not None:
        made.append(_law(found.law))
    if found.greedy is not None:
        listed = [each for each in found.greedy.compared if each.position is not None]
        rows = [(printable(str(each)),) for each in listed[:MANY]]
        made.append(Table("Greedy text", (found.greedy.line,), rows))
    made.append(_acceptance(found))
    if found.levels:
        made.append(_speed(found))
    if found.ratios:
        paired = [
            (
                str(r.concurrency),
                str(r.pairs),
                *map(estimated, (r.tpot, r.ttft, r.user)),
                number(r.machine, 2),
            )
            for r in found.ratios
        ]
        head = ("at a time", "pairs", "time per token (speed-up)", "TTFT", "user's tok/s")
        title = "Against the baseline, above 1 is better, 95 % intervals"
        made.append(Table(title, (*head, "machine's tok/s"), paired))
    return made


def _law(law: LawResult) -> Table:
    rows = []
    for arm in filter(None, (law.server, law.baseline)):
        for name, seen, due, z in arm.deviations:
            size = f"{seen - due:+.4f}"
            rows.append((arm.name, name, f"{seen:.4f}", f"{due:.4f}", size, f"{z:.1f}"))
    head = ("texts of", "set of tokens", "observed", "due", "bias", "z")
    return Table(f"Sampled text: {law.verdict}", head if rows else (printable(law.line),), rows)


def _acceptance(found: Checked) -> Table:
    accepted = found.acceptance
    head = ("here", "value", "elsewhere")
    if accepted is None:
        return Table("Acceptance", ("n/a: the engine tells nothing of its drafts",), [])
    rows = [(name, number(value, 3), other) for name, value, other in accepted.rows()]
    rounds = number(accepted.rounds, 0)
    return Table(f"Acceptance ({accepted.source}; {rounds} rounds)", head, rows)


def _speed(found: Checked) -> Table:
    head = ["at a time", "server", "TTFT ms", "ms per token", "user's tok/s", "machine's tok/s"]
    objectives = found.plan.objectives
    head += ["good tok/s", "good requests"] if objectives else []
    rows = []
    for each in found.levels:
        row = [
            str(each.concurrency),
            each.server + (f" ({each.failed} not timed)" if each.failed else ""),
            estimated(each.ttft, 1000),
            estimated(each.tpot, 1000),
            estimated(each.user),
            number(each.machine, 1),
        ]
        if objectives:
            share = each.good_requests
            row += [number(each.good_tokens, 1), UNTOLD if share is None else f"{share:.0%}"]
        rows.append(tuple(row))
    return Table("Speed of greedy text, 95 % intervals", tuple(head), rows)


def number(value: float | None, digits: int) -> str:
    """Format a figure; one that is none, or not finite, is not known."""
    return UNTOLD if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def estimated(value: Estimate | None, scale: float = 1.0) -> str:
    """Format a figure with its interval."""
    if value is None:
        return UNTOLD
    shown = f"{value.mean * scale:.3g}"
    if value.low is None or value.high is None:
        return shown
    return f"{shown} [{value.low * scale:.3g}, {value.high * scale:.3g}]"


def notes(found: Checked) -> list[str]:
    """Return the caveats of the figures."""
    law = found.law
    lines = list(found.remarks)
    if law is not None:
        band = law.server.band
        if band.argmax:
            lines.append(
                f"a bias within {band.argmax:.2g} (the likeliest token) or {band.other:.2g} (other "
                "sets) may be rounding or unlisted ends of texts, and is not counted"
            )
        if law.control is not None:
            planted = f"a planted bias of {law.control.bias:.2g} was caught in "
            lines.append(f"control: {planted}{law.control.caught} of {law.control.repeats} audits")
        if law.baseline is not None:
            peak = law.baseline.to_json()["e_value_log10"]
            texts = f"{law.baseline.tokens} tokens of the baseline"
            lines.append(f"control: {texts}, e-value 10^{peak:.1f}")
        lines.append(f"not seen from here: {law.to_json()['unseen']}")
    return list(map(printable, lines))


def as_json(found: Checked) -> dict[str, Any]:
    """Return all results as plain values; a figure that is not finite is None."""
    values = {
        "schema": 1,
        "verdict": found.verdict,
        "sentence": sentence(found),
        "url": found.url,
        "engine": found.engine,
        "model": found.model,
        "baseline": found.baseline,
        "plan": found.plan.to_json(),
        "law": found.law.to_json() if found.law else None,
        "greedy": found.greedy.to_json() if found.greedy else None,
        "acceptance": found.acceptance.to_json() if found.acceptance else None,
        "speed": [each.to_json() for each in found.levels],
        "against_baseline": [each.to_json() for each in found.ratios],
        "notes": notes(found),
        "seconds": found.seconds,
    }
    return {name: finite(value, lambda _: None) for name, value in values.items()}


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{border:1px solid #bbb;"
    "padding:.2rem .6rem;text-align:left}.held{color:#06612f}.bias{color:#a40000}"
    ".unknown{color:#7a5c00}"
)


def as_html(found: Checked, version: str) -> str:
    """Return one page without scripts or links, whose tables paste into an issue."""
    e = html.escape
    style = {Verdict.HELD: "held", Verdict.BIAS: "bias", Verdict.UNKNOWN: "unknown"}
    style[Verdict.NOT_AUDITED] = "unknown"
    body = [f'<p class="{style[found.verdict]}"><strong>{e(sentence(found))}</strong></p>']
    for table in tables(found):
        body.append(f"<h2>{e(table.title)}</h2>")
        if table.rows:
            head, rows = _row("th", table.head), [_row("td", row) for row in table.rows]
            body.append(f"<table>{head}{''.join(rows)}</table>")
        else:
            body.append(f"<p>{e(table.head[0])}</p>")
    body.append("<ul>" + "".join(f"<li>{e(line)}</li>" for line in notes(found)) + "</ul>")
    told = f"sps check {version}, {found.seconds:.0f} s"
    if found.baseline:
        told += f"; baseline: {named(found.baseline)}"
    body.append(f"<p>{e(told)}</p>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>sps check {e(found.url)}</title><style>{STYLE}</style>{''.join(body)}</html>\n"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
