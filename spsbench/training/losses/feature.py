"""EAGLE's regression of the target's next feature (arXiv 2401.15077, section 4.2)."""

from torch import Tensor
from torch.nn.functional import smooth_l1_loss


def feature(guessed: Tensor, true: Tensor) -> Tensor:
    """[N, H] and [N, H] -> [N] smooth L1, the mean over H."""
    return smooth_l1_loss(guessed, true, reduction="none").mean(-1)
