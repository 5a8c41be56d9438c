"""Distance-based selection (Stern et al. 2018, arXiv 1811.03115, section 5.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.methods.verifiers.allowing import Allowing


@dataclass(frozen=True)
class Distance(Allowing):
    """Keep x while its id is at most `e` from that of q's likeliest token; then draw from q.

    Lossy, and without a bound: the law of a drafted slot is `Allowing.law` with that set, whatever
    q says of it. It is for vocabularies whose ids are values of a signal, as the paper's pixels
    are; ids of words are no distance, and text comes out wrong. `e` 0 keeps the likeliest alone.
    """

    e: int = 1

    def __post_init__(self) -> None:
        if self.e < 0:
            raise ValueError(f"e is {self.e}: expected 0 or more")

    def allowed(self, q: Tensor) -> Tensor:
        """Ids around the likeliest."""
        ids = torch.arange(q.shape[-1], device=q.device)
        return (ids - q.argmax(-1, keepdim=True)).abs() <= self.e
