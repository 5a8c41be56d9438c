"""Two runs: what is the same, better, worse for certain, and beyond the margin."""

import math
import random
from dataclasses import replace

import pytest

from spsbench.metrics.compare import MARGINS, Change, compare, tally_run
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import summaries
from tests.reports.rows import summary
from tests.simulation import cell, run

BASE = summary(
    cell(4),
    50,
    mean_token_time_ms=Estimate(10.0, 9.9, 10.1, 50),
    alpha=Estimate(0.70, 0.69, 0.71, 50),
)


def verdict(figure, now):
    found = compare([BASE], [replace(BASE, **{figure: now})])
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
    change = compare([BASE], [now]).differences[0].change
    down = math.hypot(math.log(12 / 11.7), math.log(10.1 / 10))
    assert change.mean == pytest.approx(0.2)
    assert change.low == pytest.approx(1.2 * math.exp(-down) - 1)
    assert change.n == 40


def test_regressions_are_listed_and_cells_matched():
    slow = replace(BASE, mean_token_time_ms=Estimate(20.0, 19.0, 21.0, 50))
    other = replace(BASE, cell=cell(5))
    found = compare([BASE, other], [slow, replace(BASE, cell=cell(6))])
    assert [d.figure for d in found.regressions] == ["mean_token_time_ms"]
    assert (found.added, found.gone) == ([cell(6)], [cell(5)])
    assert compare([BASE], [BASE]).regressions == []
    assert compare([], []).differences == []


def test_figures_without_an_interval_decide_nothing():
    assert verdict("mean_token_time_ms", Estimate(99.0, None, None, 1)) is Change.UNDECIDED
    assert not compare([BASE], [BASE], {"ttft_ms": 0.1}).differences


def against(then, now):
    cells, numbers = [cell(0), cell(4)], {}
    sides = tuple(tally_run(cells, rows, numbers) for rows in (then, now))
    made = (summaries(cells, rows) for rows in (then, now))
    return compare(*made, runs=sides).differences


@pytest.fixture(scope="module")
def records():
    return [r for c in (cell(0), cell(4)) for r in run(c, 0.7, 12, spread=0.2)]


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
    assert changed.change.low is not None
    assert changed.change.low > 0.09  # unpaired the interval holds 0
    assert found[4, "speedup"].verdict is Change.REGRESSION
    assert found[4, "alpha"].verdict is Change.EQUAL
    assert found[0, "mean_token_time_ms"].verdict is Change.EQUAL
    rows = [summaries([cell(0), cell(4)], each) for each in (records, now)]
    alone = {(d.cell.k, d.figure): d for d in compare(*rows).differences}
    assert alone[4, "mean_token_time_ms"].verdict is Change.UNDECIDED


def test_runs_of_other_samples_have_no_pairs(records):
    others = [replace(r, sample=f"other {r.sample}") for r in records]
    found = against(records, others)
    assert {d.pairs for d in found} == {0}
    assert Change.EQUAL not in {d.verdict for d in found}
