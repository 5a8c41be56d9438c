"""Distributions of sampling with top-k and top-p, and places where rounding decides.

vLLM and SGLang cut after the temperature, engines on llama.cpp before it. Rounding may move a token
across the edge; a place where that would matter is not bet on, which depends on the prefix alone.
"""

from dataclasses import dataclass

import numpy as np

from spsbench.audit.statistical.betting import Bits, Floats
from spsbench.audit.warping import laws_of
from spsbench.settings.cell import WarpSettings

NATS = 1e-3  # two logarithms this near may change places at the edge of top-k
MASS = 1e-3  # what rounding at the edge may move without being felt


@dataclass(frozen=True, slots=True)
class Cut:
    """Top-k and top-p of sampled texts; 0 and 1 are off."""

    top_k: int = 0
    top_p: float = 1.0
    first: bool = False  # before the temperature
    rounding: float = 0.0  # mass by which another kernel's law may differ

    @property
    def moved(self) -> float:
        """Return the mass that the edge may move at a place that is bet on."""
        return 2 * self.rounding + MASS if self.top_k or self.top_p < 1 else 0.0


WHOLE = Cut()


def law_of(logits: Floats, temperature: float) -> Floats:
    """Return the distributions [n, V] of logits at a temperature."""
    law = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    return np.asarray(law / law.sum(1, keepdims=True))


def cut_law(logits: Floats, temperature: float, cut: Cut) -> tuple[Floats, Bits]:
    """Return the cut distributions [n, V], and [n] whether rounding cannot move the edge there."""
    law, sure = law_of(logits, temperature), np.ones(len(logits), np.bool_)
    if not cut.moved or not len(law):
        return law, sure
    at = 1.0 if cut.first else temperature  # what the cut looks at
    cut_laws = laws_of(logits, WarpSettings(temperature=at, top_k=cut.top_k, top_p=cut.top_p))
    if 0 < cut.top_k < law.shape[1]:
        falling = -np.sort(-cut_laws.scaled, axis=1)
        last, beyond = falling[:, cut.top_k - 1], falling[:, cut.top_k]
        mass = np.exp(beyond) / np.exp(falling[:, : cut.top_k]).sum(1)
        sure &= (last - beyond > NATS + cut.rounding) | (mass < MASS)
    before = cut_laws.mass  # of likelier tokens, where top-p cuts
    near = (abs(before - cut.top_p) <= cut.rounding + 1e-6) & (before > 0)
    uncut = laws_of(logits, WarpSettings(temperature=at, top_k=cut.top_k)).law
    sure &= (uncut * near).sum(1) <= cut.moved
    law = np.where(cut_laws.law > 0, law, 0.0)
    return law / law.sum(1, keepdims=True), sure
