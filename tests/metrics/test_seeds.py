"""The spread over seeds: an interval of its own, beside that over samples."""

import statistics

import pytest

from spsbench.metrics.compare import over_seeds
from spsbench.metrics.intervals import around_mean
from spsbench.metrics.summaries import summaries
from spsbench.reports.reporter import Title
from spsbench.reports.run_tables import table_of
from spsbench.reports.text import body
from tests.simulation import cell, run


def test_each_seed_gives_one_value():
    cells = [cell(k, seed=seed) for seed in range(5) for k in (0, 4)]
    records = [r for c in cells for r in run(c, 0.7, 9, seed=c.seed + 10 * (c.k or 0))]
    rows = summaries(cells, records)
    found = {each.cell.k: each for each in over_seeds(rows)}
    assert found[4].seeds == [0, 1, 2, 3, 4]
    values = [row.alpha.mean for row in rows if row.alpha]
    alpha = found[4].figures["alpha"]
    side = 2.7764 * statistics.stdev(values) / 5**0.5
    assert alpha[:4] == pytest.approx(
        (statistics.mean(values), alpha.mean - side, alpha.mean + side, 5)
    )
    assert found[0].figures["block_efficiency"][:3] == (1.0, None, None)  # by definition
    table = table_of(rows, Title("run"))
    line = next(
        line for line in table.remarks if line.startswith("Over 5 seeds, xsum, T 1, SpS K=4")
    )
    assert f"alpha {alpha.mean:.3f} [" in line
    assert "over seeds" in line
    assert body(table).headings[:3] == ["method", "setting", "seed"]
    assert over_seeds(rows[:2]) == []


def test_two_seeds_tell_little():
    two = around_mean([1.0, 1.1])
    assert two.low == pytest.approx(1.05 - 12.7062 * 0.05, abs=1e-4)
    assert around_mean([1.0])[1:4] == (None, None, 1)
