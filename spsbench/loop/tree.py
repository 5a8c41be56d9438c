"""The shape of a draft tree (SpecInfer, section 4.2): made on the host, once for each shape.

Drafters, engines and verifiers see one `Tree`; a chain is one of width 1. A verifier's decisions
stay on its device, where it looks them up in `TreeTables`, which are sent there once.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.loop.sampling import row, send
from spsbench.settings.records import TreeRound

MAX_SHAPES = 64  # that are kept: a drafter with a fixed tree has a few
MAX_NODES = 512  # the most that a user may ask a tree to have


class TreeTables(NamedTuple):
    """The tables of a tree, on a device."""

    paths: Tensor  # [N + 1, N] the nodes on the way to each row, padded with -1
    ancestors: Tensor  # [N, N] bool: j is on the way to i, or is i
    earlier: Tensor  # [N, N] bool: j is a sibling of i and was drawn before it
    above: Tensor  # [N] the row of each node's parent
    upwards: Tensor  # [N] `Tree.upwards`
    tested: Tensor  # [N + 1] depths looked at by a walk down that ends at each row

    def walked_down(self, passed: Tensor) -> Tensor:
        """Return [], the last row of a walk to each node's first child that `passed` [N] bool."""
        kept = passed & ~(self.earlier & passed).any(-1)
        reached = (kept | ~self.ancestors).all(-1)
        rows = torch.arange(1, len(passed) + 1, device=passed.device)
        return torch.cat([rows.new_zeros(1), rows.where(reached, 0)]).amax()

    def path_to(self, end: Tensor) -> Tensor:
        """Return [N], the nodes on the path to a [] row, padded with -1."""
        return row(self.paths, end)


class Tree:
    """N nodes in draw order, parents before children; a node's row is its number + 1.

    Row 0 is the context, the parent -1. `children` [N + 1] are those of each row, in the order in
    which they were drawn; `depth` [N + 1] is the number of tokens on the path to each row.
    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.parents = parents
        children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        depth = [0]
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: expected -1 to {node - 1}")
            children[parent + 1].append(node)
            depth.append(depth[parent + 1] + 1)
        self.children, self.depth = tuple(map(tuple, children)), tuple(depth)
        self._tables: dict[torch.device, TreeTables] = {}

    def path(self, at: int) -> list[int]:
        """Return the nodes on the path to row `at`, from the context on; [] for row 0."""
        upwards: list[int] = []
        while at:
            upwards.append(at - 1)
            at = self.parents[at - 1] + 1
        return upwards[::-1]

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Return the rows with children, by depth, those with most children first."""
        by_depth: list[list[int]] = [[] for _ in range(max(self.depth) + 1)]
        for at, below in enumerate(self.children):
            if below:
                by_depth[self.depth[at]].append(at)
        ranked = (sorted(rows, key=lambda at: -len(self.children[at])) for rows in by_depth if rows)
        return tuple(map(tuple, ranked))

    @cached_property
    def upwards(self) -> tuple[int, ...]:
        """Return the N nodes in post-order: each after all its descendants, siblings as drawn."""

        def below(row: int) -> Iterator[int]:
            for node in self.children[row]:
                yield from below(node + 1)
                yield node

        return tuple(below(0))

    @cached_property
    def visible(self) -> Tensor:
        """Return [N, N] bool, kept: whether node i attends to j, which is itself or an ancestor."""
        sees = np.eye(len(self.parents), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                sees[node] |= sees[parent]
        return torch.from_numpy(sees)

    @cached_property
    def ancestors(self) -> Tensor:
        """Return the [N] numbers of ancestors: 0 for a child of the context."""
        return to_int64(self.depth[1:]) - 1

    def tables(self, device: torch.device) -> TreeTables:
        """Return the `TreeTables` on `device`, made and sent there at the first call for it."""
        if device in self._tables:
            return self._tables[device]
        n = len(self.parents)
        paths = [self.path(at) for at in range(n + 1)]
        earlier = torch.zeros(n, n, dtype=torch.bool)
        for siblings in self.children:
            for rank, node in enumerate(siblings):
                earlier[node, list(siblings[:rank])] = True
        on_host = TreeTables(
            torch.tensor([path + [-1] * (n - len(path)) for path in paths]).view(n + 1, n).long(),
            self.visible,
            earlier,
            to_int64(self.parents) + 1,
            to_int64(self.upwards),
            to_int64([len(path) + bool(self.children[at]) for at, path in enumerate(paths)]),
        )
        self._tables[device] = TreeTables(*(send(table, device) for table in on_host))
        return self._tables[device]

    def walked(self, path: Sequence[int]) -> TreeRound:
        """Return the `TreeRound` of accepted nodes `path`, with the depth of the whole tree."""
        siblings = [self.children[self.parents[node] + 1].index(node) for node in path]
        offered = [len(self.children[at]) for at in (0, *(node + 1 for node in path))]
        return TreeRound(max(self.depth), tuple(path), tuple(siblings), tuple(offered))


_tree = lru_cache(MAX_SHAPES)(Tree)


def tree_of(parents: Tensor | Sequence[int]) -> Tree:
    """Return the tree of [N] parents, made once: do not write to its tensors."""
    return _tree(tuple(parents.tolist() if isinstance(parents, Tensor) else parents))


def to_int64(values: Sequence[int]) -> Tensor:
    """Return [n] int64, also of an empty list."""
    return torch.tensor(values, dtype=torch.int64)


def node_positions(parents: Tensor, fed: int, cached: int) -> Tensor:
    """Return [fed] text positions of a pass after `cached` tokens; the last N of both are nodes."""
    n, end = len(parents), cached + fed
    where = torch.arange(cached, end)
    where[max(0, fed - n) :] = (end - n + tree_of(parents).ancestors)[-fed:]
    return where


def block_visible(parents: Tensor, fed: int) -> Tensor:
    """Return [fed, M] bool: which of the last M rows of cache and pass each fed token attends to.

    M is the greater of N and `fed`; the last N rows are tree nodes. Tokens before the nodes attend
    causally, nodes to all of those and to their ancestors.
    """
    n, visible = len(parents), tree_of(parents).visible
    if n >= fed:
        return visible[n - fed :]
    sees = torch.ones(fed, fed, dtype=torch.bool).tril()
    sees[fed - n :, fed - n :] = visible
    return sees


def additive_mask(parents: Tensor, fed: int, cached: int, dtype: torch.dtype) -> Tensor:
    """Return the [1, 1, fed, cached + fed] mask of a pass that ends in N tree nodes, on the CPU.

    0 where a token may attend, the lowest number of `dtype` where it may not. All tokens attend to
    the cache and to each other as `block_visible` says. (transformers' eager attention would
    misread a boolean mask.)
    """
    sees = block_visible(parents, fed)
    mask = torch.zeros(fed, cached + fed, dtype=dtype)
    mask[:, cached + fed - sees.shape[1] :].masked_fill_(~sees, torch.finfo(dtype).min)
    return mask[None, None]
