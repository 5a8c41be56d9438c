"""Seconds by tokens and context, measured in turns; medians of them with intervals.

A turn measures everything once, so that whatever slows the machine for a while slows all parts of
that turn. Sums and ratios are therefore made within each turn, and the median is taken last: the
drift of a machine cancels in a ratio, and no two measurements are taken to be independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Floats

MISSED = 0.025  # chance beyond each end of an interval
SLOWEST = 0.1  # part of the turns that counts as disturbed on a busy machine
FEWEST_TURNS = 6  # least and greatest of 6 hold the median with 97 %, of 5 with 94 %


class Typical(NamedTuple):
    """A median over turns with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def typical(values: Floats, busy: bool = False) -> Typical:
    """The median of [T] turns, and the order statistics that hold the true one 95 times in 100.

    Nothing is assumed of how times are distributed (Hahn and Meeker 1991, section 5.2). On a busy
    machine turns do not vary by chance alone: then the interval is from the least that was seen to
    all but the slowest tenth.
    """
    ordered = np.sort(values)
    rank = _rank(len(ordered))
    low, high = ordered[rank], ordered[-1 - rank]
    if busy:
        low, high = ordered[0], max(high, np.quantile(ordered, 1 - SLOWEST))
    return Typical(float(np.median(ordered)), float(low), float(high))


def _rank(count: int) -> int:
    """How many of the least, and of the greatest, lie outside the interval of `count` turns."""
    below = 0.0
    for rank in range(count):
        below += math.comb(count, rank) / 2**count
        if below > MISSED:
            return max(rank - 1, 0)
    return 0


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one part in every turn, at a grid of tokens and contexts.

    Between its points it is interpolated in both directions. Beyond the last it goes on as between
    the last two, and never falls; a shorter context than the first costs what the first does, and
    fewer tokens than the first what the line through the first two says, but no less than 0.
    """

    tokens: tuple[int, ...]  # [N], rising
    contexts: tuple[int, ...]  # [C], rising: tokens in the cache before the pass
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
        """[T] seconds of each turn."""
        rows = along(self.contexts, self.seconds, context, 0.0)  # [T, N]
        return along(self.tokens, rows, tokens, -math.inf)

    def held(self, tokens: float, context: float) -> Floats:
        """The same, but with nothing beyond the ends: the nearest point there."""
        first, last = self.tokens[0], self.tokens[-1]
        near = min(max(context, self.contexts[0]), self.contexts[-1])
        return self.at(min(max(tokens, first), last), near)

    def times(self, factor: float) -> "Surface":
        """Another part that takes `factor` times as long."""
        return Surface(self.tokens, self.contexts, self.seconds * factor)

    def of_turns(self, turns: Sequence[int]) -> "Surface":
        """Of some of the turns only."""
        return Surface(self.tokens, self.contexts, self.seconds[list(turns)])


def along(axis: Sequence[int], values: Floats, at: float, least: float) -> Floats:
    """[..., A] values at the points of `axis` -> [...] at one place of it.

    `least`: 0 holds the first value before the first point, minus infinity goes on with its line.
    """
    if len(axis) == 1:
        return np.asarray(values[..., 0])
    right = min(max(int(np.searchsorted(axis, at)), 1), len(axis) - 1)
    before, after = values[..., right - 1], values[..., right]
    share = (at - axis[right - 1]) / (axis[right] - axis[right - 1])
    if share < 0:
        share = max(share, least)
    found = before + share * (after - before)
    if share > 1:
        found = np.maximum(found, after)
    elif share < 0:
        found = np.clip(found, 0.0, before)
    return np.asarray(found)
