"""Bars of text: as long as the speed-up, with the interval in lighter shades."""

import pytest

from spsbench.metrics.intervals import Estimate
from spsbench.reports.chart import bar


def estimate(low: float | None, mean: float, high: float | None) -> Estimate:
    return Estimate(mean=mean, low=low, high=high, n=9)


@pytest.mark.parametrize(
    ("gain", "drawn"),
    [
        ((1.0, 1.5, 2.0), "██████████▓▓▓▓▓░░░░░          "),
        ((None, 2.0, None), "████████████████████          "),
        ((0.3, 0.5, 0.7), "███▓▓░░  │                    "),
    ],
)
def test_a_bar_shows_estimate_interval_and_where_1_is(
    gain: tuple[float | None, float, float | None], drawn: str
) -> None:
    assert bar(estimate(*gain), 0.1, 30, "█▓░│") == drawn
