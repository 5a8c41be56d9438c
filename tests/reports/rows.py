"""Reports of rows by hand: a run, timings under load, and batches."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.batch_figures import with_batch_figures
from spsbench.reports.reporter import Report, Title
from spsbench.reports.run_tables import make_table
from spsbench.settings.cell import Cell
from spsbench.spec import Spec
from tests.simulation import cell


def summary(of: Cell, n: int, horizon: int = 128, **more: Any) -> Summary:
    """A row of `n` samples, all of them timed, of which only `more` is known."""
    counts = {"samples": n, "n": n, "failures": 0, "cut": 0, "timed": n}
    return Summary(cell=of, horizon=horizon, **(counts | more))


ARS = summary(
    cell(0),
    50,
    cut=3,
    timed=49,
    block_efficiency=Estimate(1.0, 1.0, 1.0, 50),
    mean_token_time_ms=Estimate(14.1, 14.0, 14.2, 49),
    speedup=Estimate(1.0, 1.0, 1.0, 49),
    quality={"rouge2": Estimate(0.112, 0.1, 0.124, 50)},
)
SPS = replace(
    ARS,
    cell=cell(4),
    n=49,
    failures=1,
    alpha=Estimate(0.7, 0.69, 0.71, 49),
    block_efficiency=Estimate(2.5, None, None, 1),
    mean_token_time_ms=Estimate(7.52, 7.4, 7.6, 49),
    speedup=Estimate(1.875, 1.85, 1.9, 49),
    answer_speedup=Estimate(1.44, 1.4, 1.5, 49),
    answer_ms=Estimate(901.2, 850.0, 950.0, 49),
)
PAPER = replace(SPS, cell=cell(4, top_p=0.8))
LOST = Estimate(0.97, 0.95, 0.99, 49)
TITLE = Title("run-1", "XSum test, 50 documents", ("Chinchilla's figures are the paper's.",))

# Timings under load: all of them, some of them, and a speed-up of two pairs.
QUIET, BUSY = Estimate(7.0, 6.9, 7.1, 6), Estimate(21.0, 18.0, 26.0, 18, loaded=True)
GAINED, FEW = Estimate(1.8, 1.2, 2.7, 18, loaded=True), Estimate(0.7, None, None, 2, loaded=True)
MIXED = summary(
    cell(4),
    18,
    timed=6,
    loaded=12,
    efficiency=Estimate(0.5, 0.4, 0.6, 18),
    mean_token_time_ms=QUIET,
    loop_time_ms=QUIET,
    speedup=GAINED,
)
LOADED = replace(MIXED, timed=0, loaded=18, mean_token_time_ms=BUSY, loop_time_ms=BUSY)
BASE = replace(LOADED, cell=cell(0), speedup=Estimate(1.0, 1.0, 1.0, 18))
OPEN = replace(LOADED, speedup=FEW)
SLOWER = replace(MIXED, cell=cell(2), timed=18, loaded=0, speedup=Estimate(0.85, 0.8, 0.9, 18))
EATEN = replace(  # faster by token, slower by answer
    SLOWER, speedup=Estimate(1.2, 1.1, 1.3, 18), answer_speedup=LOST, ttft_ms=BUSY, answer_ms=BUSY
)

GAINS = {(2, 1): 1.5, (4, 1): 1.8, (2, 4): 1.1, (4, 4): 0.9, (2, 8): 0.8, (4, 8): 0.5}


def in_batch(k: int, batch: int, tau: float = 2.0, **changes: Any) -> Summary:
    """A row in a batch that is faster than ArS by `GAINS`."""

    def alone(value: float) -> Estimate:
        return Estimate(value, None, None, 9)

    return summary(
        cell(k).but(batch=batch, **changes),
        9,
        8,
        block_efficiency=Estimate(tau, tau - 0.1, tau + 0.1, 9),
        mean_token_time_ms=alone(2.0 * batch),
        speedup=alone(GAINS.get((k, batch), 1.0)),
        measured={"machine_tokens_per_s": alone(400.0), "empty_rows": alone(0.25)},
    )


IN_BATCHES = [in_batch(k, batch) for k, batch in product((0, 2, 4), (1, 4, 8))]


def long_names() -> list[Summary]:
    """Rows that share their sampling, one with a name of many letters."""
    adaptive = {
        "drafter": Spec.parse("hybrid:first=suffix,then=eagle3"),
        "schedule": Spec.parse("goodput:draft=0.08,row=0.02,most=6"),
    }
    shared = {"chat": True, "top_p": 0.8}
    cells = cell(0, **shared), cell(4, **shared), cell(4, **shared, **adaptive)
    return [replace(row, cell=of) for row, of in zip((ARS, SPS, SPS), cells, strict=True)]


def reports() -> Iterator[tuple[str, Report]]:
    """Yield the name and the report of each case."""
    plain = make_table([ARS, SPS, PAPER], TITLE, paper=True)
    yield "run", Report("run-1", [plain])
    yield "narrow", Report("run-1", [plain], width=60, plain=True)
    notes = ("Quality, xsum: fine.", "Incomplete: 3 of 9 generations.")
    named = make_table(long_names(), Title("run-1", "", notes), paper=True)
    yield "names", Report("run-1", [named], width=100)
    loaded = make_table(
        [BASE, OPEN, replace(MIXED, cell=cell(3)), SLOWER], Title("run"), paper=True
    )
    yield "load", Report("run", [loaded])
    others = {"eaten": [BASE, EATEN], "open": [BASE, OPEN], "loaded": [LOADED]}
    others["unpaired"] = [BASE, replace(MIXED, speedup=FEW._replace(mean=1.2, loaded=False))]
    runs = [make_table(rows, Title(name)) for name, rows in others.items()]
    yield "runs", Report(", ".join(others), runs)
    more = [in_batch(2, size, tau, continuous=True) for size, tau in ((8, 2.5), (16, 2.9))]
    rows = [*IN_BATCHES, *more]
    yield "batches", Report("run", [with_batch_figures(make_table(rows, Title("run")), rows)])


REPORTS = dict(reports())
