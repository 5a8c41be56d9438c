"""Seconds by tokens and context: medians over turns with intervals, and what lies between."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Floats

MISSED = 0.025  # chance of the true value beyond each end of an interval
SLOWEST = 0.1  # share of turns dropped as outliers on a busy machine
FEWEST_TURNS = 6  # minimum and maximum of 6 cover the median with 97 %, of 5 with 94 %


class MedianEstimate(NamedTuple):
    """A median over turns with its 95 % interval."""

    value: float
    low: float
    high: float


def typical(values: Floats, busy: bool = False) -> MedianEstimate:
    """Return the median of [T] turns, and the order statistics of its 95 % interval.

    Distribution-free (Hahn and Meeker 1991, section 5.2). On a busy machine turns do not vary by
    chance alone: the interval then runs from the minimum to the 0.9 quantile, or wider.
    """
    ordered = np.sort(values)
    rank = _rank(len(ordered))
    low, high = ordered[rank], ordered[-1 - rank]
    if busy:
        low, high = ordered[0], max(high, np.quantile(ordered, 1 - SLOWEST))
    return MedianEstimate(float(np.median(ordered)), float(low), float(high))


def _rank(count: int) -> int:
    """Return how many order statistics at each end are outside the interval of `count` turns."""
    below = 0.0
    for rank in range(count):
        below += math.comb(count, rank) / 2**count
        if below > MISSED:
            return max(rank - 1, 0)
    return 0


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one part in every turn, on a grid of tokens and contexts.

    Bilinear between grid points. Beyond the last point the last segment continues, and never falls;
    a context before the first costs as much as the first; fewer tokens than the first follow the
    line of the first segment, down to 0.
    """

    tokens: tuple[int, ...]  # [N], rising
    contexts: tuple[int, ...]  # tokens in the cache before the pass, rising
    seconds: Floats  # [T, N, C]

    def __post_init__(self) -> None:
        shape = self.seconds.shape
        if shape[1:] != (len(self.tokens), len(self.contexts)) or not shape[0]:
            raise ValueError(
                f"seconds have the shape {shape}: expected turns, then "
                f"{len(self.tokens)} by {len(self.contexts)}"
            )
        for axis in (self.tokens, self.contexts):
            if not axis or list(axis) != sorted(set(axis)):
                raise ValueError(f"{list(axis)}: expected numbers that rise")

    def at(self, tokens: float, context: float) -> Floats:
        """Return [turns] seconds at this number of tokens and this context, interpolated."""
        rows = interpolate_along(self.contexts, self.seconds, context, 0.0)  # [T, N]
        return interpolate_along(self.tokens, rows, tokens, -math.inf)

    def held(self, tokens: float, context: float) -> Floats:
        """Return [turns] seconds as `at` does; beyond the grid, those at its nearest point."""
        first, last = self.tokens[0], self.tokens[-1]
        near = min(max(context, self.contexts[0]), self.contexts[-1])
        return self.at(min(max(tokens, first), last), near)

    def times(self, factor: float) -> "Surface":
        """Return a surface with all seconds multiplied by `factor`."""
        return Surface(self.tokens, self.contexts, self.seconds * factor)


def in_turns(seconds: Floats, turns: int) -> Floats:
    """Return [turns] seconds: `seconds` if there are as many, else their median in each turn."""
    return seconds if len(seconds) == turns else np.full(turns, np.median(seconds))


def interpolate_along(axis: Sequence[int], values: Floats, at: float, least: float) -> Floats:
    """Interpolate [..., A] values at the points of `axis` linearly -> [...] at one point.

    Beyond the last point the last segment continues, and never falls. Before the first, a `least`
    of 0 repeats the first value; minus infinity extends the first segment, within 0 and that value.
    One point alone gives its value everywhere.
    """
    if len(axis) == 1:
        return np.asarray(values[..., 0])
    right = min(max(int(np.searchsorted(axis, at)), 1), len(axis) - 1)
    before, after = values[..., right - 1], values[..., right]
    share = (at - axis[right - 1]) / (axis[right] - axis[right - 1])
    if share < 0:
        share = max(share, least)
    interpolated = before + share * (after - before)
    if share > 1:
        interpolated = np.maximum(interpolated, after)
    elif share < 0:
        interpolated = np.clip(interpolated, 0.0, before)
    return np.asarray(interpolated)
