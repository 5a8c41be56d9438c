"""Intervals: the same every time, none where nothing is known, and true about as often as said."""

import numpy as np
import pytest

from spsbench.figures.intervals import RESAMPLES, Bootstrap, bca, of_means, over


def test_an_interval_is_the_same_every_time_and_holds_its_mean() -> None:
    values = np.random.default_rng(1).random(50)
    first, again = of_means(values), of_means(values)
    assert first == again
    assert first is not None
    assert first.mean == pytest.approx(values.mean())
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.mean < first.high
    assert first.n == 50


def test_it_is_about_as_wide_as_theory_has_it() -> None:
    values = np.random.default_rng(2).normal(10, 2, 400)
    estimate = of_means(values)
    assert estimate is not None
    width = 2 * 1.96 * values.std() / 20
    assert estimate.high - estimate.low == pytest.approx(width, rel=0.1)


def test_repeats_of_a_sample_stay_together() -> None:
    values = np.repeat(np.random.default_rng(3).random(40), 25)
    rows = np.stack([values, np.ones_like(values)], axis=1)
    clustered = Bootstrap(rows, np.repeat(np.arange(40), 25)).estimate(over(0, 1), 1)
    alone = of_means(values[::25])
    assert clustered is not None
    assert alone is not None
    assert clustered.n == 1000
    assert clustered[:3] == pytest.approx(alone[:3])


@pytest.mark.parametrize(
    ("clusters", "interval"), [([0, 0, 0], False), ([0, 0, 1], True), ([0, 1, 2], True)]
)
def test_one_sample_has_no_interval(clusters: list[int], interval: bool) -> None:
    rows = np.array([[1.0, 1], [2, 1], [4, 1]])
    estimate = Bootstrap(rows, np.array(clusters)).estimate(over(0, 1), 1)
    assert estimate is not None
    assert estimate.mean == pytest.approx(7 / 3)
    assert (estimate.low is not None) == interval


def test_a_sample_that_takes_no_part_does_not_count() -> None:
    rows = np.array([[1.0, 2], [0, 0], [0, 0]])
    estimate = Bootstrap(rows, np.arange(3)).estimate(over(0, 1), 1)
    assert estimate == (0.5, None, None, 1)


def test_nothing_to_divide_by() -> None:
    assert of_means(np.array([])) is None
    rows = np.zeros((3, 2))
    assert Bootstrap(rows, np.arange(3)).estimate(over(0, 1), 1) is None


def test_bca_of_symmetric_draws_is_the_percentile_interval() -> None:
    draws = np.linspace(-1, 1, RESAMPLES + 1)
    low, high = bca(0.0, draws, np.array([-1.0, 0.0, 1.0]))
    assert (low, high) == pytest.approx((-0.95, 0.95), abs=1e-9)


@pytest.mark.parametrize("samples", [30, 100])
def test_the_truth_lies_inside_about_as_often_as_said(samples: int) -> None:
    draw = np.random.default_rng(0)
    held, trials = 0, 400
    for _ in range(trials):
        tokens = draw.integers(20, 128, samples).astype(float)
        seconds = tokens * draw.gamma(20, 0.014 / 20, samples)  # skewed, mean 14 ms
        rows = np.stack([seconds, tokens], axis=1)
        estimate = Bootstrap(rows, np.arange(samples)).estimate(over(0, 1), 1)
        assert estimate is not None
        held += estimate.low <= 0.014 <= estimate.high
    assert 0.91 <= held / trials <= 0.985


def test_values_that_are_all_alike_have_no_interval() -> None:
    assert of_means(np.zeros(40)) == (0.0, None, None, 40)
    assert of_means(np.array([0.25])) == (0.25, None, None, 1)
    assert of_means(np.array([])) is None
    varied = of_means(np.array([0.0, 0.0, 0.0, 1.0]))
    assert varied is not None
    assert varied.low is not None
