"""Warp of the audits: independent of `sampling.Warp`, and always in float64.

Temperature, then top-k (ties with the k-th stay), then top-p (a token stays while the mass of the
tokens before it is below p, likeliest first, equal ones by id), then min-p (a token stays if it has
that share of the largest probability). Both audits, by enumeration and by betting, use this module.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spsbench.audit.statistical.betting import Floats
from spsbench.settings.cell import WarpSettings


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws of n positions, and the distance of each token from the boundary of the support."""

    law: Floats  # [n, V]
    scaled: Floats  # [n, V] logits over the temperature, the largest 0
    least: Floats  # [n] the least scaled logits that top-k and min-p keep
    mass: Floats  # [n, V] of the likelier tokens that top-k keeps
    top_p: float

    def outside(self, tokens: NDArray[np.int64]) -> Floats:
        """Return [n] the distance of each token beyond the support: 0 for a token within.

        The unit is logits if top-k or min-p cut the token, and mass if top-p did.
        """
        rows = np.arange(len(tokens))
        below = np.maximum(self.least - self.scaled[rows, tokens], 0.0)
        over = np.maximum(self.mass[rows, tokens] - self.top_p, 0.0)
        cut = np.where(below > 0, below, over)
        return np.where(self.law[rows, tokens] > 0, 0.0, np.maximum(cut, 1e-300))


def laws_of(logits: Floats, warp: WarpSettings) -> Laws:
    """Return [n, V] the laws of logits; the temperature is above 0."""
    n, size = logits.shape
    scaled = (logits.astype(np.float64) - logits.max(-1, keepdims=True)) / warp.temperature
    least = np.full(n, -np.inf)
    if 0 < warp.top_k < size:
        least = np.partition(scaled, size - warp.top_k, axis=-1)[:, size - warp.top_k]
    weights = np.where(scaled >= least[:, None], np.exp(scaled), 0.0)
    law = weights / weights.sum(-1, keepdims=True)
    mass = np.zeros_like(law)
    if warp.top_p < 1:
        order = np.argsort(-law, axis=-1, kind="stable")
        ranked = np.take_along_axis(law, order, -1)
        before = np.concatenate([np.zeros((n, 1)), ranked.cumsum(-1)[:, :-1]], axis=-1)
        np.put_along_axis(mass, order, before, -1)
        law = np.where(mass < warp.top_p, law, 0.0)
    if warp.min_p > 0:
        least = np.maximum(least, np.log(warp.min_p))
        law = np.where(law >= warp.min_p * law.max(-1, keepdims=True), law, 0.0)
    return Laws(law / law.sum(-1, keepdims=True), scaled, least, mass, warp.top_p)
