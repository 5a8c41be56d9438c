"""Two runs: the same, better, worse for certain, beyond the margin; repeats, and seeds."""

import math
import random
import statistics
from dataclasses import replace

import pytest

from spsbench.metrics.compare import MARGINS, Change, compare_runs, over_seeds, tally_run
from spsbench.metrics.intervals import Estimate, around_mean
from spsbench.metrics.summaries import summaries
from spsbench.reports.reporter import Title
from spsbench.reports.run_tables import make_table
from spsbench.reports.text import body
from tests.reports.rows import summary
from tests.simulation import cell, run

BASE = summary(
    cell(4),
    50,
    mean_token_time_ms=Estimate(10.0, 9.9, 10.1, 50),
    alpha=Estimate(0.70, 0.69, 0.71, 50),
)


def verdict(figure, now):
    found = compare_runs([BASE], [replace(BASE, **{figure: now})])
    return next(d.verdict for d in found.differences if d.figure == figure)


@pytest.mark.parametrize(
    ("mean", "side", "expected"),
    [
        (10.0, 0.1, Change.SAME),
        (10.2, 0.1, Change.SAME),
        (10.45, 0.1, Change.WORSE),
        (11.0, 0.1, Change.REGRESSION),
        (9.0, 0.1, Change.BETTER),
        (10.6, 1.0, Change.UNDECIDED),
    ],
)
def test_slower_is_worse(mean, side, expected):
    assert verdict("mean_token_time_ms", Estimate(mean, mean - side, mean + side, 50)) is expected


def test_the_interval_of_a_change_adds_both_errors():
    now = replace(BASE, mean_token_time_ms=Estimate(12.0, 11.7, 12.3, 40))
    change = compare_runs([BASE], [now]).differences[0].change
    down = math.hypot(math.log(12 / 11.7), math.log(10.1 / 10))
    assert change.mean == pytest.approx(0.2)
    assert change.low == pytest.approx(1.2 * math.exp(-down) - 1)
    assert change.n == 40


def test_regressions_are_listed_and_cells_matched():
    slow = replace(BASE, mean_token_time_ms=Estimate(20.0, 19.0, 21.0, 50))
    other = replace(BASE, cell=cell(5))
    found = compare_runs([BASE, other], [slow, replace(BASE, cell=cell(6))])
    assert [d.figure for d in found.regressions] == ["mean_token_time_ms"]
    assert (found.added, found.gone) == ([cell(6)], [cell(5)])
    assert compare_runs([BASE], [BASE]).regressions == []
    assert compare_runs([], []).differences == []


def test_figures_without_an_interval_decide_nothing():
    assert verdict("mean_token_time_ms", Estimate(99.0, None, None, 1)) is Change.UNDECIDED
    assert not compare_runs([BASE], [BASE], {"ttft_ms": 0.1}).differences


CELLS = cell(0), cell(4)


def against(then, now):
    numbers = {}
    sides = tuple(tally_run(CELLS, rows, numbers) for rows in (then, now))
    made = (summaries(CELLS, rows) for rows in (then, now))
    return compare_runs(*made, runs=sides).differences


@pytest.fixture(scope="module")
def records():
    return [r for c in CELLS for r in run(c, 0.7, 12, spread=0.2)]


def slower(record, factor):
    return replace(record, rounds=[r._replace(seconds=factor * r.seconds) for r in record.rounds])


@pytest.mark.parametrize("samples", [2, 12])
def test_a_run_against_itself_is_equal_in_every_figure(records, samples):
    own = [r for r in records if int(r.sample[1:]) < samples]
    found = against(own, list(reversed(own)))
    assert {d.figure for d in found} == {*MARGINS}
    assert {d.verdict for d in found} == {Change.EQUAL}
    assert {d.change for d in found} == {Estimate(0.0, 0.0, 0.0, samples)}
    assert {d.pairs for d in found} == {samples}


def test_pairs_see_what_the_spread_of_samples_hides(records):
    draw = random.Random(0)
    now = [
        slower(r, 1.1 * draw.uniform(0.99, 1.01)) if r.cell == cell(4).id else r for r in records
    ]
    found = {(d.cell.k, d.figure): d for d in against(records, now)}
    changed = found[4, "mean_token_time_ms"]
    assert changed.verdict is Change.REGRESSION
    assert changed.change.mean == pytest.approx(0.1, abs=0.01)
    assert changed.change.low > 0.09  # unpaired the interval holds 0
    assert found[4, "speedup"].verdict is Change.REGRESSION
    assert found[4, "alpha"].verdict is Change.EQUAL
    assert found[0, "mean_token_time_ms"].verdict is Change.EQUAL
    rows = [summaries(CELLS, each) for each in (records, now)]
    alone = {(d.cell.k, d.figure): d for d in compare_runs(*rows).differences}
    assert alone[4, "mean_token_time_ms"].verdict is Change.UNDECIDED


def test_runs_of_other_samples_have_no_pairs(records):
    others = [replace(r, sample=f"other {r.sample}") for r in records]
    found = against(records, others)
    assert {d.pairs for d in found} == {0}
    assert Change.EQUAL not in {d.verdict for d in found}


def repeated(repeats, alpha=0.7):
    """Records of twelve samples, each of which came out the same in every repeat."""
    once = [r for c in CELLS for r in run(c, alpha, 12, spread=0.1)]
    return [replace(r, repeat=repeat) for repeat in range(repeats) for r in once]


def test_repeats_that_add_nothing_narrow_no_interval():
    once, often = (summaries(CELLS, repeated(repeats))[1].figures for repeats in (1, 5))
    known = [name for name, figure in once.items() if figure and figure.low != figure.high]
    assert {"speedup", "cost_ratio", "predicted_speedup", "alpha", "ttft_ms"} <= {*known}
    for name in known:
        assert often[name][:3] == pytest.approx(once[name][:3], rel=1e-9)
        assert (once[name].n, often[name].n) == (12, 60)


def test_repeats_narrow_no_change_between_two_runs():
    once, often = (against(repeated(repeats), repeated(repeats, 0.75)) for repeats in (1, 5))
    assert len(once) > 3
    for one, other in zip(once, often, strict=True):
        assert other.change[:3] == pytest.approx(one.change[:3], rel=1e-9, abs=1e-12)


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
    table = make_table(rows, Title("run"))
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
