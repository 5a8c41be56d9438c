"""Rows of reports by hand: a run, and timings under load."""

from dataclasses import replace
from typing import Any

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import Summary
from spsbench.reports.reporter import Title
from spsbench.settings.cell import Cell
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
