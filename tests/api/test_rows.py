"""The rows of a run as plain values: the same columns, however the machine was."""

from dataclasses import replace
from pathlib import Path

from spsbench.api.run import Run
from spsbench.benchmark.conduct import Outcome
from spsbench.metrics.summaries import summaries
from spsbench.reports.reporter import Report, Title, table_of
from tests.simulation import cell, run


def rows(*flags):
    cells = [cell(0), cell(4)]
    records = [replace(r, flags=flags) for c in cells for r in run(c, 0.7, 3)]
    report = Report("run", [table_of(summaries(cells, records), Title("run"))])
    return Run(Outcome(folder=Path("run"), records=6, report=report)).rows()


def test_a_column_stays_when_all_timings_were_under_load():
    quiet, busy = rows(), rows("loaded")
    assert {tuple(row) for row in quiet} == {tuple(row) for row in busy}
    assert len({tuple(row) for row in quiet}) == 1
    assert quiet[1]["mean_token_time_ms"] is not None
    assert busy[1]["mean_token_time_ms"] is None
    assert busy[1]["with_load.mean_token_time_ms"] == quiet[1]["mean_token_time_ms"]
    assert [busy[1][name] for name in ("timed", "loaded")] == [0, 3]
    assert busy[0]["alpha"] is None  # no draft: there, and empty
