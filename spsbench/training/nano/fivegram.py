"""The baseline: an interpolated Kneser-Ney n-gram model over the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """Counts of one order, as sorted keys: of the n-grams, and of their contexts.

    `kept` are the n-grams' counts less their discounts, `total` each context's count and `freed`
    the mass that its discounts free for the lower order; all as float64.
    """

    grams: Keys  # [G]
    kept: Floats  # [G]
    contexts: Keys  # [C]
    total: Floats  # [C]
    freed: Floats  # [C]


@dataclass(frozen=True, slots=True)
class FiveGram:
    """Modified Kneser-Ney (Chen and Goodman 1998, section 3), levels of order 1, 2, ..., N.

    An n-gram is one integer in base `vocab`, so `vocab ** order` must fit in 63 bits.
    """

    levels: tuple[Level, ...]
    vocab: int

    def probabilities(self, ids: Keys, position: int) -> Floats:
        """The whole law [V] of the token at `position` of ids [N], given those before it."""
        rows = np.tile(ids[max(0, position - len(self.levels) + 1) : position + 1], (self.vocab, 1))
        rows[:, -1] = np.arange(self.vocab)
        return self._interpolated(rows)

    def losses(self, ids: Keys) -> Floats:
        """Negative log-probability [N] in nats of every token of ids [N] given those before it."""
        order = len(self.levels)
        out = np.empty(len(ids))
        for position in range(min(order - 1, len(ids))):
            out[position] = self._interpolated(ids[None, : position + 1])[0]
        if len(ids) >= order:
            windows = np.lib.stride_tricks.sliding_window_view(ids, order)
            out[order - 1 :] = self._interpolated(windows)
        return np.asarray(-np.log(out))

    def _interpolated(self, rows: Keys) -> Floats:
        """Probability [R] of the last token of each of rows [R, n] given the others, n <= order."""
        law = np.full(len(rows), 1.0 / self.vocab)
        for order, level in enumerate(self.levels[: rows.shape[1]], start=1):
            gram = _pack(rows[:, rows.shape[1] - order :], self.vocab)
            kept = _lookup(level.grams, level.kept, gram)
            context = gram // self.vocab
            total = _lookup(level.contexts, level.total, context)
            freed = _lookup(level.contexts, level.freed, context)
            seen = total > 0
            law[seen] = (kept[seen] + freed[seen] * law[seen]) / total[seen]
        return law


def fit(ids: Keys, vocab: int, order: int = 5) -> FiveGram:
    """Count ids [N] and set the discounts.

    Raises:
        ValueError: keys of this order and vocabulary do not fit in an int64, or the ids are too
            few.
    """
    if vocab**order >= 2**63:
        raise ValueError(f"{order}-grams over {vocab} tokens do not fit in an int64")
    if len(ids) < order:
        raise ValueError(f"{len(ids)} tokens are too few for order {order}")
    windows = np.lib.stride_tricks.sliding_window_view(ids.astype(np.int64), order)
    grams, counts = np.unique(_pack(windows, vocab), return_counts=True)
    levels = [_level(grams, counts, vocab)]
    for lower in range(order - 1, 0, -1):
        # Below the top the count of an n-gram is the number of different tokens before it.
        grams, counts = np.unique(grams % vocab**lower, return_counts=True)
        levels.append(_level(grams, counts, vocab))
    return FiveGram(tuple(reversed(levels)), vocab)


def _level(grams: Keys, counts: NDArray[np.int64], vocab: int) -> Level:
    """One order's discounted counts."""
    ones, twos, threes, fours = (max(int((counts == n).sum()), 1) for n in (1, 2, 3, 4))
    y = ones / (ones + 2 * twos)
    steps = np.array([0.0, 1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 0.0])
    steps[3] = 3 - 4 * y * fours / threes
    # Tiny corpora can give discounts outside of what leaves every law a law.
    discount = np.clip(steps, [0.0, 0.1, 0.1, 0.1], [0.0, 0.9, 1.9, 2.9])[np.minimum(counts, 3)]
    contexts, first = np.unique(grams // vocab, return_index=True)
    return Level(
        grams=grams,
        kept=counts - discount,
        contexts=contexts,
        total=np.add.reduceat(counts.astype(np.float64), first),
        freed=np.add.reduceat(discount, first),
    )


def _pack(rows: Keys, vocab: int) -> Keys:
    """Keys [R] of rows [R, n]: the digits of an integer in base `vocab`."""
    key = np.zeros(len(rows), dtype=np.int64)
    for column in range(rows.shape[1]):
        key = key * vocab + rows[:, column]
    return key


def _lookup(keys: Keys, values: Floats, wanted: Keys) -> Floats:
    """`values` at the wanted keys [R], 0 where they are absent; `keys` are sorted."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0.0)
