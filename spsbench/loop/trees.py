"""Draft trees: masks and positions from the parents of the nodes (SpecInfer, section 4.2)."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from spsbench.settings.records import TreeRound


def levels_of(parents: Sequence[int]) -> list[int]:
    """Return the [N] levels of nodes (1 = a child of the context); parents precede children."""
    levels: list[int] = []
    for parent in parents:
        levels.append(1 if parent < 0 else levels[parent] + 1)
    return levels


def visible(parents: Tensor) -> Tensor:
    """Return [N, N] bool, whether node i attends to node j: to itself and its ancestors.

    Parents [N] precede children; -1 is the context. The result is cached: do not write to it.
    """
    return _ancestry(tuple(parents.tolist()))[0]


def depths(parents: Tensor) -> Tensor:
    """Return the [N] numbers of ancestors: 0 for a child of the context."""
    return _ancestry(tuple(parents.tolist()))[1]


@lru_cache(maxsize=64)
def _ancestry(parents: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Compute `visible` and `depths` once for each shape: many drafters repeat theirs."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: expected -1 to {node - 1}")
        if parent >= 0:
            seen[node] |= seen[parent]
    sees = torch.from_numpy(seen)
    return sees, torch.tensor(levels_of(parents), dtype=torch.int64) - 1


def places(parents: Tensor, fed: int, cached: int) -> Tensor:
    """Return the [fed] positions of a pass's tokens; the last N of cache and pass are nodes."""
    n, end = len(parents), cached + fed
    where = torch.arange(cached, end)
    where[max(0, fed - n) :] = (end - n + depths(parents))[-fed:]
    return where


def block_visible(parents: Tensor, fed: int) -> Tensor:
    """Return [fed, most] bool: which of the last `most` rows each fed token attends to.

    `most` is N or `fed`, whichever is more; the last N of cache and pass are nodes. The tokens
    before the nodes attend causally, nodes to all of those and to their ancestors.
    """
    n = len(parents)
    if n >= fed:
        return visible(parents)[n - fed :]
    sees = torch.ones(fed, fed, dtype=torch.bool).tril()
    sees[fed - n :, fed - n :] = visible(parents)
    return sees


def additive_mask(parents: Tensor, fed: int, cached: int, dtype: torch.dtype) -> Tensor:
    """Return the [1, 1, fed, cached + fed] attention mask of a pass that ends in N tree nodes.

    0 where a token may attend, the lowest number of `dtype` where it may not. All tokens attend to
    the cache and to each other as `block_visible` says. (transformers' eager attention would
    misread a boolean mask.)
    """
    sees = block_visible(parents, fed)
    mask = torch.zeros(fed, cached + fed, dtype=dtype)
    mask[:, cached + fed - sees.shape[1] :].masked_fill_(~sees, torch.finfo(dtype).min)
    return mask[None, None]


def walked(parents: Sequence[int], path: Sequence[int]) -> TreeRound:
    """Return the depths, siblings and offers that a verifier met on its way down `path`."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    siblings = [children[parents[node]].index(node) for node in path]
    offered = [len(children.get(node, ())) for node in (-1, *path)]
    return TreeRound(
        max(levels_of(parents), default=0), tuple(path), tuple(siblings), tuple(offered)
    )
