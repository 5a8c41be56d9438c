"""The rounds of one logged text, in expectation: for every K from one set of coins.

A round that starts at position t keeps slot i with a chance that the text determines
(`planning.forecast.acceptance_chances`), and the rounds of a text are a Markov chain over
positions. Where all chances are 0 or 1, as for drafters by rule, it is a walk. Slots beyond the end
of the text are drafted, but whether they would be accepted is unknown: they count in no share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.rounds import VerifierRule

Ints = NDArray[np.int64]


class Rounds(NamedTuple):
    """The rounds of a text of L tokens under one K, in expectation."""

    starts: Ints  # [S] positions at which a round may start
    weights: Floats  # [S] chance that one does
    drafted: Ints  # [S] drafted tokens
    within: Ints  # [S] those of them whose places the text has
    tested: Floats  # [K] how often each slot of a draft is reached, within the text
    kept: Floats  # [K] how often it is kept
    accepted: Floats  # [S] expected accepted tokens of a round

    @property
    def expected(self) -> float:
        """Return the expected number of rounds."""
        return float(self.weights.sum())


def walk(agree: Sequence[int], proposed: Sequence[int], k: int) -> Rounds:
    """Return the rounds of a draft by rule.

    Args:
        agree: [L] first tokens of the proposal at each position that the text has too.
        proposed: [L] tokens of the proposal.
        k: most drafted tokens.
    """
    starts, position, length = [], 0, len(agree)
    while position < length:
        starts.append(position)
        position += min(agree[position], k) + 1
    at = np.array(starts, np.int64)
    accepted = np.minimum(np.array(agree, np.int64)[at], k)
    drafted = np.minimum(np.array(proposed, np.int64)[at], k)
    within = np.minimum(drafted, length - at)
    slots = np.arange(k)
    return Rounds(
        starts=at,
        weights=np.ones(len(at)),
        drafted=drafted,
        within=within,
        tested=((slots < within[:, None]) & (slots <= accepted[:, None])).sum(0).astype(float),
        kept=(slots < accepted[:, None]).sum(0).astype(float),
        accepted=accepted.astype(float),
    )


def chances(rule: VerifierRule, p: Floats, q: Floats | None, most: int) -> Floats:
    """Return [L, most] chances that a round from each position keeps its first i + 1 slots.

    Slots beyond the text have the chance 0.

    Args:
        rule: `sps` and `block` need `q`.
        p, q: [L] probabilities of the logged tokens under draft and target.
        most: the largest K.
    """
    ratios = p if rule == "match" or q is None else p / q
    if rule == "sps":
        ratios = np.minimum(ratios, 1.0)
    padded = np.concatenate([ratios, np.zeros(most - 1)])
    products = np.cumprod(np.lib.stride_tricks.sliding_window_view(padded, most), axis=1)
    if rule == "block":
        products = np.minimum(np.minimum.accumulate(products, axis=1), 1.0)
    return products


def chain(kept: Floats, k: int) -> Rounds:
    """Return the rounds of a sampled draft, which always has K tokens.

    Args:
        kept: [L, most] of `chances`.
        k: at most `most`.
    """
    length = len(kept)
    reached = np.concatenate([np.ones((length, 1)), kept[:, :k]], axis=1)
    outcomes = reached - np.concatenate([kept[:, :k], np.zeros((length, 1))], axis=1)  # [L, K + 1]
    weights = np.zeros(length + k + 1)
    weights[0] = 1.0
    for position in range(length):
        if weights[position]:
            weights[position + 1 : position + k + 2] += weights[position] * outcomes[position]
    weights = weights[:length]
    within = np.minimum(length - np.arange(length), k)
    inside = np.arange(k) < within[:, None]
    return Rounds(
        starts=np.arange(length),
        weights=weights,
        drafted=np.full(length, k),
        within=within,
        tested=weights @ (reached[:, :k] * inside),
        kept=weights @ kept[:, :k],
        accepted=kept[:, :k].sum(1),
    )
