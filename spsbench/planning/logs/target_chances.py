"""The target's probabilities of logged tokens, from log-probabilities as servers state them.

Most servers log them before temperature and cuts: exact at temperature 1. At another temperature T
the law is q(x)^(1/T) / S with S = sum_y q(y)^(1/T), which the logged likeliest tokens bound. Under
cuts (top-k, top-p, min-p) the law is exact where all that is kept is among the logged tokens.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.rounds import LEAST
from spsbench.settings.cell import WarpSettings


class Bounds(NamedTuple):
    """The probability of each logged token, between two ends."""

    low: Floats  # [L]
    high: Floats  # [L]

    @property
    def exact(self) -> bool:
        """Return whether both ends are one."""
        return self.low is self.high


def probabilities(
    logprobs: Sequence[float],
    warp: WarpSettings,
    tops: Sequence[Sequence[float]] | None,
    vocab_size: int | None,
) -> Bounds | None:
    """Return the probabilities of tokens that were drawn under a warp of a temperature above 0.

    Args:
        logprobs: [L] of the tokens, at temperature 1 and without cuts.
        warp: of the request.
        tops: of the likeliest tokens at each place; None allows temperature 1 without cuts alone.
        vocab_size: tokens of the vocabulary; None = unknown, which bounds S from below alone.

    Returns:
        None where nothing bounds them.
    """
    logs = np.maximum(np.array(logprobs, np.float64), math.log(LEAST))
    is_cut = warp.top_k > 0 or warp.top_p < 1 or warp.min_p > 0
    if warp.temperature == 1.0 and not is_cut:
        exact = np.exp(logs)
        return Bounds(exact, exact)
    if tops is None or len(tops) != len(logs):
        return None
    if is_cut:
        masses = [kept_mass(head, warp) for head in tops] if warp.temperature == 1.0 else [None]
        if None in masses:
            return None
        exact = np.minimum(np.exp(logs) / np.array(masses, np.float64), 1.0)
        return Bounds(exact, exact)
    if vocab_size is None:
        return None
    powers = np.exp(logs / warp.temperature)
    low, high = np.empty_like(powers), np.empty_like(powers)
    for place, head in enumerate(tops):
        least, most = tail(head, warp.temperature, vocab_size)
        listed = sum(math.exp(value / warp.temperature) for value in head)
        low[place] = powers[place] / (listed + most)
        high[place] = min(1.0, powers[place] / (listed + least))
    return Bounds(np.maximum(low, LEAST), np.maximum(high, LEAST))


def kept_mass(head: Sequence[float], warp: WarpSettings) -> float | None:
    """Return the mass that the cuts of a warp keep at temperature 1.

    Args:
        head: log-probabilities of the likeliest tokens.

    Returns:
        None where tokens that are not logged may be kept.
    """
    chances = sorted((math.exp(value) for value in head), reverse=True)
    count = len(chances)
    if warp.top_k:
        count = min(count, warp.top_k)
    ends = bool(warp.top_k) and warp.top_k <= len(chances)
    mass = sum(chances[:count]) if ends else 1.0  # which the nucleus is a share of
    before = 0.0
    for place, chance in enumerate(chances[:count]):
        beyond_nucleus = warp.top_p < 1 and place > 0 and before >= warp.top_p * mass
        if beyond_nucleus or chance < warp.min_p * chances[0]:
            return before
        before += chance
    return before if ends else None


def tail(head: Sequence[float], temperature: float, vocab_size: int) -> tuple[float, float]:
    """Return bounds of the sum of q^(1/T) over the tokens below the logged ones.

    They share the mass that the head leaves, and none is likelier than the head's last. x^(1/T) is
    convex for T < 1 and concave for T > 1, so the ends are all mass on the fewest tokens and an
    even spread.
    """
    mass = max(0.0, 1.0 - sum(math.exp(value) for value in head))
    count = max(0, vocab_size - len(head))
    if not mass or not count:
        return 0.0, 0.0
    largest = math.exp(min(head))
    crowded = mass / largest * largest ** (1 / temperature)  # mass on tokens of the largest size
    even = count * (mass / count) ** (1 / temperature)
    return min(crowded, even), max(crowded, even)
