"""Two runs: what is the same, better, worse for certain, and beyond the margin."""

import math
from dataclasses import replace

import pytest

from spsbench.figures.compare import Change, compare
from spsbench.figures.intervals import Estimate
from spsbench.figures.summary import Summary
from tests.simulation import cell

BASE = Summary(
    cell=cell(4),
    samples=50,
    n=50,
    failures=0,
    cut=0,
    timed=50,
    horizon=128,
    mean_token_time_ms=Estimate(10.0, 9.9, 10.1, 50),
    alpha=Estimate(0.70, 0.69, 0.71, 50),
)


def verdict(figure: str, now: Estimate) -> Change:
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
def test_slower_is_worse(mean: float, side: float, expected: Change) -> None:
    assert verdict("mean_token_time_ms", Estimate(mean, mean - side, mean + side, 50)) is expected


def test_lower_acceptance_is_worse() -> None:
    assert verdict("alpha", Estimate(0.6, 0.59, 0.61, 50)) is Change.REGRESSION
    assert verdict("alpha", Estimate(0.8, 0.79, 0.81, 50)) is Change.BETTER


def test_the_interval_of_a_change_adds_both_errors() -> None:
    now = replace(BASE, mean_token_time_ms=Estimate(12.0, 11.7, 12.3, 40))
    change = compare([BASE], [now]).differences[0].change
    down = math.hypot(math.log(12 / 11.7), math.log(10.1 / 10))
    assert change.mean == pytest.approx(0.2)
    assert change.low == pytest.approx(1.2 * math.exp(-down) - 1)
    assert change.n == 40


def test_regressions_are_listed_and_cells_matched() -> None:
    slow = replace(BASE, mean_token_time_ms=Estimate(20.0, 19.0, 21.0, 50))
    other = replace(BASE, cell=cell(5))
    found = compare([BASE, other], [slow, replace(BASE, cell=cell(6))])
    assert [d.figure for d in found.regressions] == ["mean_token_time_ms"]
    assert (found.added, found.gone) == ([cell(6)], [cell(5)])
    assert compare([BASE], [BASE]).regressions == []
    assert compare([], []).differences == []


def test_figures_without_an_interval_decide_nothing() -> None:
    assert verdict("mean_token_time_ms", Estimate(99.0, None, None, 1)) is Change.UNDECIDED
    assert not compare([BASE], [BASE], {"ttft_ms": 0.1}).differences
