"""A table as text, for whatever lays it out."""

from collections.abc import Sequence
from typing import NamedTuple

from spsbench.planning.forecast.surface import Typical


class Grid(NamedTuple):
    """Headings, rows of texts, and what is said below them."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()


def ms(time: Typical, interval: bool = False) -> str:
    """Seconds in milliseconds: `5.21`, or `5.21 (5.02 to 5.40)`."""
    value, low, high = (digits(1e3 * each) for each in time)
    return f"{value} ({low} to {high})" if interval else value


def digits(value: float) -> str:
    """Three digits of a number, no more than two of them decimals: `123`, `12.3`, `0.12`."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
