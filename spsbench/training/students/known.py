"""The tokens that a head has columns for: the commonest of the texts."""

import torch
from torch import Tensor

from spsbench.errors import UsageError

USUAL = 32_000


def known_tokens(counts: Tensor, wanted: int | None) -> Tensor:
    """[Vd] tokens in ascending order, on the host: the commonest, of like ones the first.

    Args:
        counts: [V] how often each token of the target is in the texts.
        wanted: how many; None: 32,000, or all.

    Raises:
        UsageError: more than the target has.
    """
    check_known(wanted, len(counts))
    chosen = counts.argsort(descending=True, stable=True)[: wanted or USUAL]
    return torch.sort(chosen.cpu()).values


def check_known(wanted: int | None, vocab: int) -> None:
    """Refuse more tokens than the target has.

    Raises:
        UsageError: with their number.
    """
    if wanted is not None and wanted > vocab:
        raise UsageError(f"--draft-vocab is {wanted}: expected 1..{vocab}, the target's tokens")
