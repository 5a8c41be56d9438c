"""The generalised Jensen-Shannon divergence (GKD, arXiv 2306.13649, eq. 1; DistillSpec)."""

import math

import torch
from torch import Tensor

from spsbench.training.losses.laws import Laws, expected


def jensen_shannon(laws: Laws, beta: float = 0.5) -> Tensor:
    """`beta` KL(q || m) + (1 - beta) KL(p || m), where m = beta q + (1 - beta) p.

    Of tokens that the drafter does not know, m is beta q.
    """
    mixed = torch.logaddexp(laws.log_q + math.log(beta), laws.log_p + math.log1p(-beta))
    unknown = (1 - laws.q.sum(-1)).clamp(min=0) * -math.log(beta)
    of_q = expected(laws.q, laws.log_q - mixed) + unknown
    of_p = (laws.log_p.exp() * (laws.log_p - mixed)).sum(-1)
    return beta * of_q + (1 - beta) * of_p
