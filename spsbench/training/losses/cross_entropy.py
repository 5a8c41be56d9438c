"""Sequence-level distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2)."""

from torch import Tensor

from spsbench.training.losses.laws import Foretold


def cross_entropy(foretold: Foretold) -> Tensor:
    """`-log p` of the token that the target wrote; 0 where the drafter does not know it."""
    known = foretold.tokens >= 0
    picked = foretold.log_p.gather(-1, foretold.tokens.clamp(min=0)[:, None])[:, 0]
    return -picked * known
