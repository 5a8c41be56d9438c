"""KL(p || q): seeks modes of the target (DistillSpec, arXiv 2310.08461, section 4)."""

from torch import Tensor

from spsbench.training.losses.laws import Laws

FLOOR = -30.0  # of log q: top-p leaves tokens out, and log 0 has no gradient


def reverse_kl(laws: Laws) -> Tensor:
    """Sum of p (log p - log q); q is at least e^-30."""
    return (laws.log_p.exp() * (laws.log_p - laws.log_q.clamp(min=FLOOR))).sum(-1)
