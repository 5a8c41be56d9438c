"""Columns of the tables: names, figures, quality scores, and their cells as text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spsbench.errors import UsageError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.parity import is_percent
from spsbench.metrics.summaries import Summary
from spsbench.settings.cell import Cell
from spsbench.settings.labels import NAMED, Names, method, warp_label
from spsbench.settings.records import MEASURES

ABSENT = "n/a"
MARK = "*"  # timed while other work used the machine
UNDECIDED = f"not decided{MARK}"  # a speed-up of a few pairs under load
GAINS = ("speedup", "answer_speedup")

Show = Callable[[Estimate, int, str], str]
"""Formatter of an estimate: (estimate, digits, unit) -> text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a table."""

    heading: str
    figure: str  # its name in `Summary.figures`
    digits: int
    unit: str = ""  # "x", "%" (the value times 100), ...

    def text(self, summary: Summary, show: Show) -> str:
        """Format by `show`, `*` if loaded; ABSENT: none; UNDECIDED: a loaded gain, no interval."""
        if (estimate := summary.figures.get(self.figure)) is None:
            return ABSENT
        if self.figure in GAINS and estimate.undecided:
            return UNDECIDED
        return show(estimate, self.digits, self.unit) + MARK * estimate.loaded


PROCESSOR = Column("CPU ms/token", "processor_token_time_ms", 2)  # not in every run
MEASURED = tuple(Column(m.heading, m.figure, m.digits) for m in MEASURES)
BY_K = Column("sd ms", "spread_ms.sd", 1), Column("P99 ms", "spread_ms.p99", 1)  # Figure 1
COLUMNS = (
    Column("speed-up", "speedup", 2, "x"),
    Column("answer speed-up", "answer_speedup", 2, "x"),
    Column("ms/token", "mean_token_time_ms", 2),
    PROCESSOR,
    Column("alpha", "alpha", 3),
    Column("tau", "block_efficiency", 2),
    Column("tau/(K+1)", "efficiency", 3),
    *MEASURED,
    Column("loop ms", "loop_time_ms", 2),
    Column("TTFT ms", "ttft_ms", 1),
    Column("answer ms", "answer_ms", 1),
    *BY_K,
)
RARE = PROCESSOR, *MEASURED, *BY_K
"""Columns that are omitted if no row has a value; `BY_K` too where K has one value of 1 or more."""


def table_columns(rows: Sequence[Summary]) -> list[Column]:
    """Return first metrics of the tasks, COLUMNS without those that `RARE` omits, other metrics."""
    names = dict.fromkeys(name for s in rows for name in s.quality)
    scores = [quality(name) for name in names]
    headlines = [column for column in scores if column.heading in headline(rows)]
    sweeps_k = len({s.cell.k for s in rows if s.cell.k}) > 1
    columns = [c for c in COLUMNS if sweeps_k or c not in BY_K]
    usual = [c for c in columns if c not in RARE or any(s.figures.get(c.figure) for s in rows)]
    return [*headlines, *usual, *(column for column in scores if column not in headlines)]


def choose_columns(rows: Sequence[Summary], names: Sequence[str]) -> list[Column]:
    """Return a column for each of `names`, in this order: headings (`speed-up`) or figures.

    A figure without a column (`prefill_ms`) has 3 decimals. UsageError: a name that no row has.
    """
    by_heading = {column.heading: column for column in [*table_columns(rows), *COLUMNS]}
    figures = dict.fromkeys(name for s in rows for name in s.figures)
    by_figure = {column.figure: column for column in by_heading.values()}
    selected = []
    for name in names:
        column = by_heading.get(name) or by_figure.get(name)
        if column is None and name in figures:
            column = Column(name, name, 3)
        if column is None:
            raise UsageError(
                f"`columns` {name}: expected some of {', '.join(by_heading)}, or figures "
                "of summary.json"
            )
        selected.append(column)
    return selected


def headline(rows: Sequence[Summary]) -> set[str]:
    """Return the names of the first metric of each task, which is a row's first one."""
    return {next(iter(s.quality)) for s in rows if s.quality}


def quality(metric: str) -> Column:
    """Return the column of a quality metric, in 2 decimals for per cent, else in 4."""
    return Column(metric, f"quality.{metric}", 2 if is_percent(metric) else 4)


def group(summary: Summary) -> str:
    """Return the category of a row: `all` for a row over all, `none` for an empty name."""
    return "all" if summary.group is None else summary.group or "none"


OPTIONS = "options"
NAMES = ("group", *NAMED, OPTIONS)
"""Columns that identify a row in machine-readable files."""


def names(rows: Iterable[Summary], *, whole: bool = False) -> dict[str, Callable[[Summary], str]]:
    """Return each of `NAMES` -> function of a row to its text; `options` joins other differences.

    The text comes from users and must be quoted. `whole` keeps the arguments of engines elsewhere,
    which a remark has below a table.
    """
    labels = Names((row.cell for row in rows), whole=whole)

    def of_cell(read: Callable[[Cell], str]) -> Callable[[Summary], str]:
        return lambda summary: read(summary.cell)

    named = {name: of_cell(read) for name, read in (NAMED | {OPTIONS: labels.option_text}).items()}
    return {"group": group, **named}


def count_generations(summary: Summary, planned: int | None = None, *, terse: bool = False) -> str:
    """Return a row's good generations in words: `312 of 400 (3 failed, 20 of 309 busy)`.

    `planned` (400, also failed ones) are an interrupted run's; None: not shown. Of 312 only 309 are
    timed; `terse` writes `20*` for what was timed under load.
    """
    notes = [f"{summary.failures} failed"] * bool(summary.failures)
    if summary.loaded:
        timed = summary.timed + summary.loaded
        notes.append(f"{summary.loaded}{MARK}" if terse else f"{summary.loaded} of {timed} busy")
    of = "" if planned is None else f" of {planned}"
    return f"{summary.n}{of}" + (f" ({', '.join(notes)})" if notes else "")


def brief(estimate: Estimate, digits: int, unit: str = "") -> str:
    """Format `1.92x ±0.03`, or `1.92x [1.90, 1.99]` if the rounded interval is asymmetric."""
    mean, low, high = estimate[:3]
    if low is None or high is None or f"{mean - low:.{digits}f}" != f"{high - mean:.{digits}f}":
        return full(estimate, digits, unit)
    return f"{mean:.{digits}f}{unit} ±{mean - low:.{digits}f}"


def full(estimate: Estimate, digits: int, unit: str = "") -> str:
    """Format `1.92x [1.90, 1.94]`, without brackets if there is no interval."""
    mean = f"{estimate.mean:.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


TARGET, DRAFT = "Chinchilla 70B", "Chinchilla 4B"
SOURCE = (
    "Rows marked Chinchilla are the paper's "
    "(Chen et al. 2023, Table 1: 70B and 4B on 16 TPU v4, not this machine)"
)


class PaperRow(NamedTuple):
    """A row of Table 1 of Chen et al. 2023, arXiv 2302.01318 (Chinchilla)."""

    task: str
    setting: str  # setting and method are spelled as in `columns`
    method: str
    metric: str
    result: float  # on the scale 0 .. 1
    mean_token_time_ms: float
    speedup: float
    sequences: int


XSUM, HUMANEVAL = "top-p 0.8", "top-p 0.95, T 0.8"

TABLE_1 = (
    PaperRow("xsum", XSUM, "ArS", "rouge2", 0.112, 14.1, 1.0, 11305),
    PaperRow("xsum", XSUM, "SpS K=4", "rouge2", 0.114, 7.52, 1.92, 11305),
    PaperRow("xsum", "greedy", "ArS", "rouge2", 0.157, 14.1, 1.0, 11305),
    PaperRow("xsum", "greedy", "SpS K=4", "rouge2", 0.156, 7.00, 2.01, 11305),
    PaperRow("humaneval", HUMANEVAL, "ArS", "pass@1", 0.451, 14.1, 1.0, 16400),
    PaperRow("humaneval", HUMANEVAL, "SpS K=4", "pass@1", 0.470, 5.73, 2.46, 16400),
)
"""Table 1. XSum: 1-shot, 11,305 sequences of at most 128 tokens.

HumanEval: 100 samples for each problem, 16,400 of at most 512 tokens. The paper gives no
temperature for nucleus sampling on XSum.
"""


def paper_row(summary: Summary) -> PaperRow | None:
    """Return the row of Table 1 of a row's task, setting and method; None for groups and others."""
    cell = summary.cell
    if summary.group is not None or not cell.own_loop:
        return None
    key = cell.task.name if cell.task else "", warp_label(cell), method(cell)
    return next((row for row in TABLE_1 if (row.task, row.setting, row.method) == key), None)


def paper_value(row: PaperRow | None, figure: str) -> float | None:
    """Return a figure of the paper, scores in the units of their metric; None: it is not there."""
    if row is None:
        return None
    scale = 100 if is_percent(row.metric) else 1
    values = {
        f"quality.{row.metric}": row.result * scale,
        "mean_token_time_ms": row.mean_token_time_ms,
        "speedup": row.speedup,
    }
    return values.get(figure)
