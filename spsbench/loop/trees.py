"""Draft trees: from parents to what each node sees and where it stands (SpecInfer, section 4.2)."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spsbench.settings.records import TreeRound


def levels_of(parents: Sequence[int]) -> list[int]:
    """[N] parents (-1 = the context, parents before children) -> [N]: 1 for a child of it."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def visible(parents: Tensor) -> Tensor:
    """[N] parents (-1 = the context, parents before children) -> [N, N] bool: i sees j.

    A node sees itself and its ancestors. What is returned is not to be written to.

    Raises:
        ValueError: a parent that does not come before its child.
    """
    return _ancestry(tuple(parents.tolist()))[0]


def depths(parents: Tensor) -> Tensor:
    """[N] parents -> [N] ancestors of each node: 0 for a child of the context."""
    return _ancestry(tuple(parents.tolist()))[1]


@lru_cache(maxsize=64)
def _ancestry(parents: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What `visible` and `depths` say; kept, for many drafters draw the same shape every round."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: expected -1 to {node - 1}")
        if parent >= 0:
            seen[node] |= seen[parent]
    sees = torch.from_numpy(seen)
    return sees, torch.tensor(levels_of(parents), dtype=torch.int64) - 1


def places(parents: Tensor, fed: int, cached: int) -> Tensor:
    """[fed] positions of the tokens of a pass, when the last N of cache and pass are nodes."""
    n, end = len(parents), cached + fed
    where = torch.arange(cached, end)
    where[max(0, fed - n) :] = (end - n + depths(parents))[-fed:]
    return where


def block_visible(parents: Tensor, fed: int) -> Tensor:
    """[fed, most] bool: what the tokens of a pass see of the last `most` of cache and pass.

    `most` is N or `fed`, whichever is more; the last N of cache and pass are nodes. The tokens
    before the nodes see each other causally, nodes see those and their ancestors.
    """
    n = len(parents)
    if n >= fed:
        return visible(parents)[n - fed :]
    sees = torch.ones(fed, fed, dtype=torch.bool).tril()
    sees[fed - n :, fed - n :] = visible(parents)
    return sees


def additive_mask(parents: Tensor, fed: int, cached: int, dtype: torch.dtype) -> Tensor:
    """[1, 1, fed, cached + fed] mask of a pass, when the last N of cache and pass are nodes.

    0 where a token may look, the lowest number of `dtype` where it may not. All look at the cache
    and at each other as `block_visible` says. (A boolean mask would be misread by transformers'
    eager attention.)
    """
    sees = block_visible(parents, fed)
    mask = torch.zeros(fed, cached + fed, dtype=dtype)
    mask[:, cached + fed - sees.shape[1] :].masked_fill_(~sees, torch.finfo(dtype).min)
    return mask[None, None]


def walked(parents: Sequence[int], path: Sequence[int]) -> TreeRound:
    """What a rule met on its way down `path` through the tree of `parents`."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    siblings = [children[parents[node]].index(node) for node in path]
    offered = [len(children.get(node, ())) for node in (-1, *path)]
    return TreeRound(
        max(levels_of(parents), default=0), tuple(path), tuple(siblings), tuple(offered)
    )
