"""KL(q || p): supervised distillation (DistillSpec, arXiv 2310.08461, section 4)."""

from torch import Tensor

from spsbench.training.losses.laws import Laws, expected


def forward_kl(laws: Laws) -> Tensor:
    """Sum of q (log q - log p), over the tokens that the drafter knows."""
    return expected(laws.q, laws.log_q - laws.log_p)
