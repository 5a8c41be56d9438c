"""The target's probabilities of logged tokens, from log-probabilities as servers state them.

Most servers log them before temperature and cuts: exact at temperature 1. Under cuts (top-k, top-p,
min-p) they are exact where all that is kept is among the logged tokens.
"""

import math
from collections.abc import Sequence

import numpy as np

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.rounds import LEAST
from spsbench.settings.cell import WarpSettings


def probabilities(
    logprobs: Sequence[float], warp: WarpSettings, tops: Sequence[Sequence[float]] | None
) -> Floats | None:
    """Return [L] probabilities of tokens that were sampled under a warp.

    Args:
        logprobs: [L] of the tokens, at temperature 1 and without cuts.
        warp: of the request.
        tops: of the likeliest tokens at each place.

    Returns:
        None where the log does not tell them: at other temperatures, or where cuts keep tokens that
        are not logged.
    """
    chances = np.exp(np.maximum(np.array(logprobs, np.float64), math.log(LEAST)))
    if warp.temperature != 1.0:
        return None
    if not (warp.top_k > 0 or warp.top_p < 1 or warp.min_p > 0):
        return chances
    masses = [kept_mass(head, warp) for head in tops or ()]
    if len(masses) != len(chances) or None in masses:
        return None
    return np.minimum(chances / np.array(masses, np.float64), 1.0)


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
