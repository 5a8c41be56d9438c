"""Draft trees: from parents to what each node sees and where it stands (SpecInfer, section 4.2)."""

import torch
from torch import Tensor


def visible(parents: Tensor) -> Tensor:
    """[N] parents (-1 = the context, parents before children) -> [N, N] bool: i sees j.

    A node sees itself and its ancestors.

    Raises:
        ValueError: a parent that does not come before its child.
    """
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents.tolist()):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: expected -1 to {node - 1}")
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def depths(parents: Tensor) -> Tensor:
    """[N] parents -> [N] ancestors of each node: 0 for a child of the context."""
    return visible(parents).sum(-1) - 1


def block_visible(parents: Tensor, fed: int) -> Tensor:
    """[fed, fed] bool: which of the tokens of a pass see each other, its last N being nodes.

    The tokens before the nodes see each other causally, nodes see those and their ancestors.
    """
    n = len(parents)
    sees = torch.ones(fed, fed, dtype=torch.bool).tril()
    sees[fed - n :, fed - n :] = visible(parents)
    return sees


def additive_mask(parents: Tensor, fed: int, cached: int, dtype: torch.dtype) -> Tensor:
    """[1, 1, fed, cached + fed] mask of a pass whose last N of `fed` tokens are nodes.

    0 where a token may look, the lowest number of `dtype` where it may not. All look at the cache
    and at each other as `block_visible` says. (A boolean mask would be misread by transformers'
    eager attention.)
    """
    sees = torch.ones(fed, cached + fed, dtype=torch.bool)
    sees[:, cached:] = block_visible(parents, fed)
    mask = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
    return mask[None, None]
