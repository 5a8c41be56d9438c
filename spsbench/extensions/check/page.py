"""Results of a check as a sentence with tables, as JSON, or as an HTML page for an issue.

Names and texts come from servers: what is shown has no invisible characters, and is cut.
"""

import math
from dataclasses import asdict
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.extensions.check.check import Checked
from spsbench.extensions.check.greedy import described
from spsbench.extensions.check.journal import finite
from spsbench.extensions.check.laws import UNSEEN, LawResult, Mode
from spsbench.extensions.check.modes import UNSEEN_IN_JSON
from spsbench.metrics.intervals import Estimate
from spsbench.reports.figures import Section, Status, TextTable
from spsbench.reports.html import static_page
from spsbench.reports.text import visible
from spsbench.serving.acceptance import Acceptance

MANY = 5  # greedy texts in the table
UNTOLD = "n/a"
TITLES = {
    "mixed": "Greedy text beside sampled text",
    "stop": "Greedy text with stop strings",
    "cache": "Greedy text asked for again",
    "json": "Greedy JSON",
}
RATIOS = (
    *("at a time", "pairs", "time per token (speed-up)", "TTFT"),
    *("user's tok/s", "machine's tok/s"),
)
BY_MODE = {
    Mode.WEIGHTS: "by the weights",
    Mode.BASELINE: "by the baseline's prompt logprobs",
    Mode.STATED: "by its own logprobs",
}
LONGEST = 100  # characters of a name
LONGEST_LINE = 1000


def sentence(checked: Checked) -> str:
    """Summarise the check in one sentence."""
    parts = []
    if checked.law is not None:
        parts.append(f"{BY_MODE[checked.law.mode]}: {checked.law.line}")
    elif "law" in checked.plan.parts:
        parts.append("the law of its text cannot be told from what it gives")
    if checked.greedy is not None:
        parts.append(f"greedy text {checked.greedy.line}")
    parts += [f"{part} {mode.line}" for part, mode in checked.modes.items()]
    parts += [f"json: {checked.json}"] if checked.json is not None else []
    parts += [f"{part}: refused" for part in checked.refused]
    if checked.ratios:
        best = checked.ratios[0]
        parts.append(f"speed-up {estimated(best.tpot)} at {best.concurrency} request(s) at a time")
    if checked.verdict is AuditVerdict.NOT_AUDITED:
        alone = "json without a baseline" if checked.json else "speed alone"
        parts.append(f"{alone} was measured, which says nothing of the text's law")
    server = f"{checked.url} ({named(checked.engine)}, {named(checked.model)})"
    sentences = ". ".join(part[:1].upper() + part[1:] for part in parts)
    return printable(f"{checked.verdict.upper()}: {server}. {sentences}.")


def named(name: str) -> str:
    """Return a name that a server gives, visible and cut."""
    name = visible(name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}..."


def printable(text: str) -> str:
    """Return a text in one line, visible and cut."""
    text = visible(text)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def tables(checked: Checked) -> list[TextTable]:
    """Return the tables of all figures that there are."""
    listed = []
    if checked.law is not None:
        listed.append(_law(checked.law))
    compared = {"Greedy text": checked.greedy, **checked.modes}
    for title, greedy in compared.items():
        if greedy is not None:
            differing = [text for text in greedy.compared if text.position is not None]
            rows = [(printable(described(text)),) for text in differing[:MANY]]
            listed.append(TextTable(TITLES.get(title, title), (greedy.line,), rows))
    listed += [_acceptance(checked.acceptance)] if checked.acceptance else []
    listed.append(_speed(checked))
    paired = [
        (
            *map(str, (r.concurrency, r.pairs)),
            *map(estimated, (r.tpot, r.ttft, r.user)),
            number(r.machine, 2),
        )
        for r in checked.ratios
    ]
    title = "Against the baseline, above 1 is better, 95 % intervals"
    listed.append(TextTable(title, RATIOS, paired))
    return [table for table in listed if table.rows]


def _law(law: LawResult) -> TextTable:
    rows = [
        (
            arm.name,
            deviation.direction,
            f"{deviation.observed:.4f}",
            f"{deviation.expected:.4f}",
            f"{deviation.bias:+.4f}",
            f"{deviation.z:.1f}",
        )
        for arm in filter(None, (law.finding.audited, law.finding.plain))
        for deviation in arm.shares
    ]
    head = ("texts of", "set of tokens", "observed", "due", "bias", "z")
    return TextTable(f"Sampled text: {law.verdict}", head, rows, names=2)


def _acceptance(acceptance: Acceptance) -> TextTable:
    rows = [(name, number(value, 3), elsewhere) for name, value, elsewhere in acceptance.rows()]
    title = f"Acceptance ({acceptance.source}; {number(acceptance.rounds, 0)} rounds)"
    return TextTable(title, ("here", "value", "elsewhere"), rows)


def _speed(checked: Checked) -> TextTable:
    head = ["at a time", "server", "TTFT ms", "ms per token", "user's tok/s", "machine's tok/s"]
    objectives = checked.plan.slo
    head += ["good tok/s", "good requests"] if objectives else []
    rows = []
    for level in checked.levels:
        row = [
            str(level.concurrency),
            level.server + (f" ({level.failed} not timed)" if level.failed else ""),
            estimated(level.ttft, 1000),
            estimated(level.tpot, 1000),
            estimated(level.user),
            number(level.machine, 1),
        ]
        if objectives:
            share = level.good_requests
            row += [number(level.good_tokens, 1), UNTOLD if share is None else f"{share:.0%}"]
        rows.append(tuple(row))
    return TextTable("Speed of greedy text, 95 % intervals", tuple(head), rows)


def number(value: float | None, digits: int) -> str:
    """Format a figure; one that is none, or not finite, is not known."""
    return UNTOLD if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def estimated(value: Estimate | None, scale: float = 1.0) -> str:
    """Format a figure with its interval."""
    if value is None:
        return UNTOLD
    mean = f"{value.mean * scale:.3g}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} [{value.low * scale:.3g}, {value.high * scale:.3g}]"


def notes(checked: Checked) -> list[str]:
    """Return the caveats of the figures."""
    law = checked.law
    lines = list(checked.remarks)
    if checked.acceptance is None and checked.answers:
        lines.append("acceptance: n/a, the engine tells nothing of its drafts")
    if law is not None:
        band = law.rounding
        if band.argmax:
            lines.append(
                f"a bias within {band.argmax:.2g} (the likeliest token) or {band.other:.2g} (other "
                "sets) may be rounding or unlisted ends of texts, and is not counted"
            )
        control, plain = law.finding.control, law.finding.plain
        if control is not None:
            planted = f"a planted bias of {control.bias:.2g} was caught in "
            lines.append(f"control: {planted}{control.caught} of {control.repeats} audits")
        if plain is not None:
            peak = plain.to_json()["e_value_log10"]
            lines.append(f"control: {plain.tokens} tokens of the baseline, e-value 10^{peak:.1f}")
        lines.append(f"not seen from here: {UNSEEN[law.mode]}")
    if checked.json is not None:
        lines.append(f"json, not seen from here: {UNSEEN_IN_JSON}")
    return list(map(printable, lines))


def as_json(checked: Checked) -> dict[str, Any]:
    """Return all results as plain values; a figure that is not finite is None."""
    values = {
        "schema": 1,
        "verdict": checked.verdict,
        "sentence": sentence(checked),
        "url": checked.url,
        "engine": checked.engine,
        "model": checked.model,
        "baseline": checked.baseline,
        "plan": checked.plan.header(),
        "law": checked.law.to_json() if checked.law else None,
        "greedy": checked.greedy.to_json() if checked.greedy else None,
        "modes": {part: mode.to_json() for part, mode in checked.modes.items()},
        "refused": checked.refused,
        "acceptance": checked.acceptance.to_json() if checked.acceptance else None,
        "speed": [asdict(level) for level in checked.levels],
        "json": {"line": checked.json} if checked.json else None,
        "against_baseline": [asdict(ratios) for ratios in checked.ratios],
        "notes": notes(checked),
        "seconds": checked.seconds,
    }
    return {name: finite(value, lambda _: None) for name, value in values.items()}


STATUSES: dict[AuditVerdict, Status] = {AuditVerdict.HELD: "good", AuditVerdict.BIAS: "bad"}


def as_html(checked: Checked, version: str) -> str:
    """Return one page without scripts, whose tables paste into an issue."""
    section = Section(
        title=f"Check of {printable(checked.url)}",
        status=STATUSES.get(checked.verdict, "open"),
        line=sentence(checked),
        notes=tuple(notes(checked)),
        tables=tuple(tables(checked)),
    )
    about = {
        "server": printable(f"{named(checked.engine)}, {named(checked.model)}"),
        "baseline": named(checked.baseline or ""),
        "made by": f"sps check {version}, {checked.seconds:.0f} s",
    }
    return static_page(f"sps check {printable(checked.url)}", [section], about)
