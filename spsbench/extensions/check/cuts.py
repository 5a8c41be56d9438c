"""Laws of sampling with top-k and top-p, as engines cut them, and places where rounding decides.

The law is cut on the softmax: top-k first, then top-p over what is left, keeping the token that
crosses it. vLLM and SGLang cut after the temperature, engines on llama.cpp before it. Rounding may
move a token across the edge; a place where that would matter is not bet on, which depends on the
prefix alone.
"""

from dataclasses import dataclass

import numpy as np

from spsbench.audit.statistical.betting import Bits, Floats

NATS = 1e-3  # two logarithms this near may change places at the edge of top-k
MASS = 1e-3  # what rounding at the edge may move without being felt


@dataclass(frozen=True, slots=True)
class Cut:
    """Top-k and top-p of sampled texts; 0 and 1 are off."""

    top_k: int = 0
    top_p: float = 1.0
    first: bool = False  # before the temperature
    rounding: float = 0.0  # mass by which another kernel's law may differ

    def __bool__(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    @property
    def moved(self) -> float:
        """Return the mass that the edge may move at a place that is bet on."""
        return 2 * self.rounding + MASS if self else 0.0


WHOLE = Cut()


def law_of(logits: Floats, temperature: float) -> Floats:
    """Return the distributions [n, V] of logits at a temperature."""
    law = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    return np.asarray(law / law.sum(1, keepdims=True))


def cut_law(logits: Floats, temperature: float, cut: Cut) -> tuple[Floats, Bits]:
    """Return the cut distributions [n, V], and [n] whether rounding cannot move the edge there."""
    law = law_of(logits, temperature)
    sure = np.ones(len(law), np.bool_)
    if not cut or not len(law):
        return law, sure
    seen = law_of(logits, 1.0 if cut.first else temperature)  # what the cut looks at
    order = np.argsort(-seen, axis=1, kind="stable")
    falling = np.take_along_axis(seen, order, 1)
    kept = np.ones(falling.shape, np.bool_)
    if 0 < cut.top_k < falling.shape[1]:
        kept[:, cut.top_k :] = False
        nearest = falling[:, cut.top_k - 1 : cut.top_k + 1]
        mass = nearest[:, 1] / falling[:, : cut.top_k].sum(1)
        with np.errstate(divide="ignore"):
            apart = np.log(nearest[:, 0]) - np.log(nearest[:, 1])
        sure &= (apart > NATS + cut.rounding) | (mass < MASS)
    if cut.top_p < 1:
        chances = np.where(kept, falling, 0.0)
        chances /= chances.sum(1, keepdims=True)
        before = chances.cumsum(1) - chances
        least, most = (before < cut.top_p + side * (cut.rounding + 1e-6) for side in (-1, 1))
        least[:, 0] = True
        between = np.where(most & ~least, chances, 0.0).sum(1)
        sure &= between <= cut.moved
        kept &= before < cut.top_p
    whole = np.zeros_like(kept)
    np.put_along_axis(whole, order, kept, 1)
    law = np.where(whole, law, 0.0)
    return law / law.sum(1, keepdims=True), sure
