"""Results of a check as a sentence, tables, JSON or HTML; servers' words made printable, cut."""

import math
from dataclasses import asdict, fields
from typing import Any

from spsbench.audit.statistical.finding import AuditVerdict, format_claim
from spsbench.extensions.check.bets import UNSEEN, Mode
from spsbench.extensions.check.check import Checked
from spsbench.extensions.check.greedy import describe
from spsbench.extensions.check.journal import finite
from spsbench.metrics.intervals import Estimate
from spsbench.reports.html import static_page
from spsbench.reports.reporter import Section, Status, TextTable
from spsbench.untrusted import cut

MANY = 5  # greedy texts in the table
BY_MODE = {
    Mode.WEIGHTS: "by the weights",
    Mode.BASELINE: "by the baseline's prompt logprobs",
    Mode.STATED: "by its own logprobs",
}
STATUSES: dict[AuditVerdict, Status] = {AuditVerdict.HELD: "good", AuditVerdict.BIAS: "bad"}
LONGEST = 100  # characters of a name
LONGEST_LINE = 1000


def sentence(checked: Checked) -> str:
    """Return verdict, server and each part's result in one line, cut to `LONGEST_LINE`."""
    parts = []
    if checked.law is not None:
        parts.append(f"{BY_MODE[checked.law.mode]}: {checked.law.line}")
    elif "law" in checked.plan.parts and not checked.scenarios:
        parts.append("the distribution of its text cannot be decided from what it gives")
    if checked.greedy is not None:
        parts.append(f"greedy text {checked.greedy.line}")
    parts += [f"{part} {mode.line}" for part, mode in checked.modes.items()]
    parts += [f"{part}: refused" for part in checked.refused]
    for verdict in AuditVerdict:
        names = [name for name, part in checked.scenarios.items() if part.verdict is verdict]
        parts += [f"{verdict} in {len(names)} scenarios: {'; '.join(names)}"] if names else []
    for best in checked.against_baseline[:1]:
        parts.append(
            f"speed-up {format_with_interval(best.tpot)} at {best.concurrency} request(s) at a time"
        )
    if checked.verdict is AuditVerdict.NOT_AUDITED:
        parts.append("speed alone was measured, which says nothing of the text's distribution")
    sentences = ". ".join(part[:1].upper() + part[1:] for part in parts)
    line = f"{checked.verdict.upper()}: {checked.url} ({server(checked)}). {sentences}."
    return cut(line, LONGEST_LINE)


def server(checked: Checked) -> str:
    """Return engine and model in words."""
    return f"{cut(checked.engine, LONGEST)}, {cut(checked.model, LONGEST)}"


def check_tables(checked: Checked) -> list[TextTable]:
    """Return the tables with rows: shares, unlike texts, scenarios, acceptance, speed, ratios."""
    listed = []
    rows: list[tuple[str, ...]]
    if sampled := checked.law:
        rows = [
            (
                *(audit.name, test.direction, f"{test.observed:.4f}", f"{test.expected:.4f}"),
                *(f"{test.bias:+.4f}", f"{test.z:.1f}"),
            )
            for audit in filter(None, (sampled.finding.audited, sampled.finding.plain))
            for test in audit.shares
        ]
        head = ("texts of", "set of tokens", "observed", "due", "bias", "z")
        listed.append(TextTable(f"Sampled text: {sampled.verdict}", head, rows, names=2))
    for part, greedy in {"": checked.greedy, **checked.modes}.items():
        if greedy is not None:
            title = f"Greedy text {part}".strip()
            differing = [text for text in greedy.compared if text.position is not None]
            rows = [(cut(describe(text), LONGEST_LINE),) for text in differing[:MANY]]
            listed.append(TextTable(title, (greedy.line,), rows))
    scenarios = [(n, str(part.verdict), part.line) for n, part in checked.scenarios.items()]
    listed.append(TextTable("Scenarios", ("drafts", "verdict", "result"), scenarios, names=1))
    if (acceptance := checked.acceptance) and acceptance.speculated:
        rows = [(name, format_known(value, 3), term) for name, value, term in acceptance.rows()]
        title = f"Acceptance ({acceptance.source}; {format_known(acceptance.rounds, 0)} rounds)"
        listed.append(TextTable(title, ("here", "value", "elsewhere"), rows))
    rows = [
        (
            str(level.concurrency),
            level.server + (f" ({level.failed} not timed)" if level.failed else ""),
            *(format_with_interval(times, 1000) for times in (level.ttft, level.tpot)),
            format_with_interval(level.user),
            format_known(level.machine, 1),
        )
        for level in checked.speed
    ]
    speed = ("user's tok/s", "machine's tok/s")
    head = ("at a time", "server", "TTFT ms", "ms per token", *speed)
    listed.append(TextTable("Speed of greedy text, 95 % intervals", head, rows))
    rows = [
        (
            *(str(r.concurrency), str(r.pairs)),
            *map(format_with_interval, (r.tpot, r.ttft, r.user)),
            format_known(r.machine, 2),
        )
        for r in checked.against_baseline
    ]
    head = ("at a time", "pairs", "time per token (speed-up)", "TTFT", *speed)
    listed.append(TextTable("Against the baseline, above 1 is better, 95 % intervals", head, rows))
    return [table for table in listed if table.rows]


def format_known(value: float | None, digits: int) -> str:
    """Format a figure to `digits` decimal places; `n/a` for None, NaN and infinity."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def format_with_interval(value: Estimate | None, scale: float = 1.0) -> str:
    """Format a figure times `scale` as `mean [low, high]`, or without an interval; None is n/a."""
    if value is None:
        return "n/a"
    mean, low, high = (x if x is None else f"{x * scale:.3g}" for x in value[:3])
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


def notes(checked: Checked) -> list[str]:
    """Return the remarks, and the caveats on acceptance and on sampled texts, each cut if long."""
    lines = list(checked.notes)
    if checked.acceptance is None and checked.answers:
        lines.append("acceptance: n/a, the engine tells nothing of its drafts")
    elif checked.acceptance is not None and not checked.acceptance.speculated:
        lines.append(f"acceptance: n/a, no token was drafted ({checked.acceptance.source})")
    if sampled := checked.law:
        band, control, plain = sampled.rounding, sampled.finding.control, sampled.finding.plain
        if band.argmax:
            lines.append(
                f"a bias within {band.argmax:.2g} (the likeliest token) or {band.other:.2g} (other "
                "sets) may be rounding or unlisted ends of texts, and is not counted"
            )
        if control is not None:
            planted = f"a planted bias of {format_claim(control.bias)} was caught in "
            lines.append(f"control: {planted}{control.caught} of {control.repeats} audits")
        if plain is not None:
            peak = plain.to_json()["e_value_log10"]
            lines.append(f"control: {plain.tokens} tokens of the baseline, e-value 10^{peak:.1f}")
        lines.append(f"not seen from here: {UNSEEN[sampled.mode]}")
    return [cut(line, LONGEST_LINE) for line in lines]


def to_plain_values(checked: Checked) -> dict[str, Any]:
    """Return name -> result of the check as plain values; a figure that is not finite is None."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [part if isinstance(part, str) else asdict(part) for part in value]
        if isinstance(value, dict):
            return {name: part.to_json() for name, part in value.items()}
        return value.to_json() if hasattr(value, "to_json") else value

    values = {field.name: plain(getattr(checked, field.name)) for field in fields(checked)}
    values |= {"schema": 1, "verdict": checked.verdict, "sentence": sentence(checked)}
    values |= {"plan": checked.plan.header(), "notes": notes(checked)}
    return {name: finite(value, None) for name, value in values.items()}


def as_section(checked: Checked) -> Section:
    """Return the sentence, notes and tables of a check."""
    return Section(
        title=f"Check of {checked.url}",
        status=STATUSES.get(checked.verdict, "open"),
        line=sentence(checked),
        notes=tuple(notes(checked)),
        tables=tuple(check_tables(checked)),
    )


def as_html(checked: Checked, version: str) -> str:
    """Return an HTML page by `version`, without scripts; its HTML tables paste into an issue."""
    about = {
        "server": server(checked),
        "baseline": cut(checked.baseline or "", LONGEST),
        "made by": f"sps check {version}, {checked.seconds:.0f} s",
    }
    return static_page(f"sps check {checked.url}", [as_section(checked)], about)
