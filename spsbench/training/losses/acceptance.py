"""`-log alpha`: the acceptance of a place itself, on a scale that has a slope from a cold start."""

from torch import Tensor

from spsbench.training.losses.laws import Laws

LEAST = 1e-9


def acceptance(laws: Laws) -> Tensor:
    """`-log sum min(p, q)` (negative log acceptance, arXiv 2602.23881)."""
    return -laws.overlap.clamp(min=LEAST).log()
