"""TV(p, q) = 1 - alpha (Leviathan et al. 2023, corollary 3.6; DistillSpec, arXiv 2310.08461)."""

from torch import Tensor

from spsbench.training.losses.laws import Laws


def total_variation(laws: Laws) -> Tensor:
    """One minus the overlap: what is rejected. Without hold where p is far from q at first."""
    return 1 - laws.overlap
