"""LK hybrid: KL while acceptance is low, total variation when it is high (arXiv 2602.23881)."""

from torch import Tensor

from spsbench.training.losses.forward_kl import forward_kl
from spsbench.training.losses.laws import Laws

STEEP = 3.0


def hybrid(laws: Laws, steep: float = STEEP) -> Tensor:
    """`w KL(q || p) + (1 - w) TV(p, q)` with w = exp(-steep alpha), which has no gradient.

    Alpha is that of the place.
    """
    alpha = laws.overlap
    weight = (-steep * alpha.detach()).exp()
    return weight * forward_kl(laws) + (1 - weight) * (1 - alpha)
