"""Answers at the top of the page: speed-up, losslessness, quality; then tables and definitions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.parity import OF_QUALITY, Parity, ParityVerdict
from spsbench.metrics.summaries import Summary
from spsbench.metrics.sums import group_by
from spsbench.metrics.text_checks import Same
from spsbench.reports.columns import full
from spsbench.reports.page.exhibits import drawn_numbers
from spsbench.reports.plots import inline_svg
from spsbench.reports.reporter import Figure, Section, Status, Table, TextTable
from spsbench.reports.text import body, escape_piece, markup
from spsbench.settings.cell import EXACT, GUARANTEES, Cell
from spsbench.settings.labels import Names
from spsbench.tables import read_table

NONE: Mapping[str, Section] = {}


class Statement(NamedTuple):
    """A sentence and its outcome."""

    status: Status
    text: str


class PageAnswer(NamedTuple):
    """The result for one task and setting."""

    run: str
    name: str  # task and setting
    method: str  # method of the fastest row, which the statements describe
    figure: str  # speed-up, in large type
    interval: str
    slower: bool  # the speed-up is below 1
    speed: Statement
    lossless: Statement
    quality: Statement
    lack: str = ""  # generations of an interrupted run

    @property
    def look(self) -> str:
        """Return the CSS class of the figure: `slower`, `words` for no number, or empty."""
        return "slower" if self.slower else "" if self.figure[0].isdigit() else "words"

    @property
    def statements(self) -> list[Statement]:
        """Return the statements: on an interrupted run first, then speed, losslessness, quality."""
        unfinished = f"The run is {self.lack}: the figures are of those alone."
        first = [Statement("open", unfinished)] * bool(self.lack)
        return [*first, self.speed, self.lossless, self.quality]


def answers(
    table: Table, same: dict[str, Same | None], audits: Mapping[str, Section] = NONE
) -> list[PageAnswer]:
    """Return an answer a task, setting and target; by cell id `same` (None: no texts), `audits`."""
    names = Names(row.cell for row in table.whole)
    drafting = (row for row in table.whole if row.cell.k != 0)
    by_work = group_by(drafting, lambda row: (names.work(row.cell), row.cell.target.id))
    return [_answer(table, rows, names, same, audits) for rows in by_work.values()]


def _answer(
    table: Table,
    rows: Sequence[Summary],
    names: Names,
    same: dict[str, Same | None],
    audits: Mapping[str, Section],
) -> PageAnswer:
    """Return the answer of the fastest of `rows`, decided ones first, and what its texts show.

    Its figure is the speed-up, or words: not decided under load, or no difference shown where the
    interval contains 1; n/a without it.
    """
    timed = [row for row in rows if row.speedup and not row.speedup.undecided]
    best = max(timed or rows, key=lambda row: row.speedup.mean if row.speedup else 0.0)
    cell, gained = best.cell, best.speedup
    figure, interval = "n/a", ""
    if gained is not None and gained.undecided:
        figure, interval = "not decided", "measured on a busy machine"
    elif gained is not None:
        figure, interval = f"{gained.mean:.2f}x", _interval(gained)
        if gained.low is not None and gained.high is not None and gained.low <= 1 <= gained.high:
            figure, interval = "no difference shown", f"{figure}, {interval}"
    return PageAnswer(
        run=table.title.run,
        name=names.work(cell),
        method=names.how(cell),
        figure=figure,
        interval=interval,
        slower=gained is not None and not gained.undecided and gained.mean < 1,
        speed=_speed_statement(best, names.how(cell), len(timed)),
        lossless=lossless(cell, same.get(cell.id), audits.get(cell.id)),
        quality=_quality(cell, table.parities, same.get(cell.id)),
        lack=table.lack.strip(" ()"),
    )


def _speed_statement(row: Summary, method: str, among: int) -> Statement:
    """State the speed-up over ArS of the best of `among` methods, or why it is open.

    It is good or bad if an interval excludes 1, else open: without times, undecided under load, or
    with too few samples. Then come its whole answer's times and that it was selected.
    """
    gained, token_time = row.speedup, row.mean_token_time_ms
    if token_time is None:
        return Statement("open", "Speed-up unknown: no usable timing.")
    if gained is None:
        return Statement("open", "Speed-up unknown: no timed ArS to compare with.")
    if gained.undecided:
        text = "Speed-up not decided: a busy machine, and too few samples for an interval."
        return Statement("open", text)
    busy = ", measured on a busy machine" if token_time.loaded else ""
    over = f" over {gained.n} shared generation{'s' * (gained.n != 1)}"
    over *= gained.n != token_time.n
    what = f"{method} takes {token_time.mean:.2f} ms a token{busy}"
    ratio_in_words = (
        f"{gained.mean:.2f} times as fast as ArS{over}"
        if gained.mean >= 1
        else f"slower than ArS{over}, {gained.mean:.2f} times as fast"
    )
    behind = _whole_answer(row)
    if among > 1:
        behind += f" It is the fastest of {among} methods, selected on these same timings."
    if gained.low is None or gained.high is None:
        text = f"{what}, {ratio_in_words}; too few samples for an interval."
        return Statement("open", text + behind)
    text = f"{what}, {ratio_in_words} ({_interval(gained)})."
    if gained.low > 1:
        return Statement("good", text + behind)
    if gained.high < 1:
        return Statement("bad", text + behind)
    return Statement("open", f"{text} The interval contains 1: no difference is shown.{behind}")


def _whole_answer(row: Summary) -> str:
    """Return a space and a sentence on the answer with its prefill; "": not timed, or undecided."""
    gained, first, last = row.answer_speedup, row.ttft_ms, row.answer_ms
    if gained is None or gained.undecided or first is None or last is None:
        return ""
    slower = "slower than ArS, " * (gained.mean < 1)
    return (
        f" Its first token comes after {first.mean:.0f} ms, its last after {last.mean:.0f} ms: the "
        f"whole answer, prefill included, is {slower}{gained.mean:.2f} times as fast."
    )


def lossless(cell: Cell, same: Same | None, audit: Section | None = None) -> Statement:
    """State whether a cell is lossless, and why: its rule, then greedy texts, then an audit.

    Good is an exact rule in our own loop; bad a lossy one, random weights, or an audit's bias; open
    are other loops and guarantees, and differing greedy texts of a rule that is not lossy. `same`
    None: there are no greedy texts to compare.
    """
    if cell.random or cell.verifier.name == "synthetic":
        return Statement("bad", "Timing only: the output is meaningless by construction.")
    rule = cell.verifier.name
    is_claimed = rule not in GUARANTEES and cell.guarantee == EXACT  # a claim is no proof
    promise = "" if is_claimed else cell.guarantee
    if not cell.own_loop:
        text = "Decoded by another loop than this project's: no guarantee."
        status: Status = "open"
    elif promise == "exact":
        text = f"Lossless: the rule {rule} preserves the target's distribution exactly."
        status = "good"
    elif promise == "greedy-exact":
        text, status = f"The rule {rule} is lossless at temperature 0 only.", "open"
    elif promise:
        text, status = f"Not lossless: the rule {rule} changes the distribution.", "bad"
    else:
        text, status = f"Unknown: no guarantee of the rule {rule} is known.", "open"
    if same is not None:
        text += f" {same.equal} of {same.of} greedy texts are identical to those of ArS."
        if same.equal < same.of and not cell.lossy:
            text += " The others differ by a rounding tie or a fault: sps verify pair shows which."
            status = "open"
    if audit is not None:
        status = "bad" if audit.status == "bad" else status
        text += f" Audit of these records: {audit.line}."
    elif same is None and cell.temperature:
        text += " Sampled texts differ by design; sps verify run tests the records of this run."
    return Statement(status, text)


def _quality(cell: Cell, parities: Iterable[tuple[Cell, Parity]], same: Same | None) -> Statement:
    """State whether the scores equal those of ArS, by the worst parity; without, by equal texts."""
    of_cell = [parity for of, parity in parities if of.id == cell.id]
    if not of_cell and same is not None and same.equal == same.of:
        return Statement("good", f"Quality: {ParityVerdict.IDENTICAL}, since all texts are equal.")
    if not of_cell:
        return Statement("open", "Quality: not scored for both ArS and SpS.")
    statuses: dict[ParityVerdict, Status] = {
        ParityVerdict.IDENTICAL: "good",
        ParityVerdict.EQUIVALENT: "good",
        ParityVerdict.DIFFERENT: "bad",
    }
    text = [f"{parity.sentence}." for parity in of_cell]
    text += [f"{OF_QUALITY}."] * any(parity.bounded for parity in of_cell)
    seen: list[Status] = [statuses.get(p.verdict, "open") for p in of_cell]
    status: Status = "bad" if "bad" in seen else "open" if "open" in seen else "good"
    return Statement(status, "Quality: " + " ".join(text))


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"95 % interval {estimate.low:.2f} to {estimate.high:.2f}"


DEFINITIONS: Mapping[str, str] = read_table(__file__, "definitions.toml")


PARAGRAPH = 2000  # characters of an explanation


def define(figure: str) -> str:
    """Return the definition of a figure of `Summary.figures` (docs/design.md), empty if unknown."""
    return DEFINITIONS.get(figure) or DEFINITIONS.get(figure.partition(".")[0], "")


def figure_html(figure: Figure) -> Markup:
    """Return the HTML of a plot with what its figures mean and a table of its numbers."""
    title, says = (escape_piece(text, PARAGRAPH) for text in (figure.title, figure.says))
    terms = {name: meaning for name in figure.terms if (meaning := define(name))}
    plot = Markup(inline_svg(replace(figure, title=""), escaped(title)))
    headings = ("figure", "configuration", "x", "value", "low", "high")
    table = TextTable(figure.title, headings, drawn_numbers(figure), names=3)
    return Markup(HTML.exhibit(figure, title, says, plot, terms, table))


def table_html(table: Table) -> Markup:
    """Return the HTML of a table with definitions of its figures, and of its further tables."""
    text = body(table, full)
    figures = {column.heading: column.figure for column in table.columns}
    says = [define(figures.get(h, h)) for h in text.headings]
    return Markup().join([HTML.table(text, says), *map(HTML.table, table.further)])


def escaped(value: Any) -> Markup:
    """Return a value as HTML: what is marked so as it is, other text escaped."""
    return value if isinstance(value, Markup) else Markup(markup(value))


ASSETS = Path(__file__).parent / "assets"
HTML: Any = (
    Environment(autoescape=True, finalize=escaped, undefined=StrictUndefined)
    .from_string((ASSETS / "page.html").read_text("utf-8"))
    .module
)
"""The macros of `assets/page.html`, which escape every text."""
