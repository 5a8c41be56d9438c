"""HASS's loss over the target's likeliest tokens (arXiv 2408.15766, section 3.1)."""

from torch import Tensor

from spsbench.training.losses.laws import Laws


def top_k(laws: Laws, k: int = 10) -> Tensor:
    """`-sum q log p` over the k tokens that q has most of."""
    values, ids = laws.q.topk(min(k, laws.q.shape[-1]), -1)
    return -(values * laws.log_p.gather(-1, ids)).sum(-1)
