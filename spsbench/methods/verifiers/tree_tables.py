"""The shape of a draft for verifiers: computed on the host, once for each distinct shape.

A verifier's decisions stay on the device, where it looks them up in tables: the path to a node, its
ancestors, the siblings drawn before it. The tables follow from the parents alone and are sent once.
`match` walks a tree on the host without tables, where its uniforms are there: it then draws from
the rows of the walk alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.loop.sampling import row, send
from spsbench.loop.trees import levels_of
from spsbench.loop.types import Draft, Verdict

KEPT = 64  # shapes whose tables are kept: a drafter with a fixed tree has a few


@dataclass(frozen=True)
class Shape:
    """N nodes in draw order; a node's row is its number + 1, row 0 is the context."""

    parents: tuple[int, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Return [N + 1], the children of each row in the order in which they were drawn."""
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Return [N + 1], the number of tokens on the path to each row: 0 for the context."""
        return (0, *levels_of(self.parents))

    def path(self, at: int) -> list[int]:
        """Return the nodes on the path to row `at`."""
        upwards: list[int] = []
        while at:
            upwards.append(at - 1)
            at = self.parents[at - 1] + 1
        return upwards[::-1]

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Return the rows that have children, by depth; those with the most children first."""
        by_depth: list[list[int]] = [[] for _ in range(max(self.depth) + 1)]
        for at, below in enumerate(self.children):
            if below:
                by_depth[self.depth[at]].append(at)
        ranked = (sorted(rows, key=lambda at: -len(self.children[at])) for rows in by_depth if rows)
        return tuple(map(tuple, ranked))

    @cached_property
    def upwards(self) -> tuple[int, ...]:
        """Return the [N] nodes in post-order: each after all of its descendants."""
        order: list[int] = []
        waiting = list(self.children[0][::-1])
        opened = set[int]()
        while waiting:
            node = waiting[-1]
            if node in opened or not self.children[node + 1]:
                order.append(waiting.pop())
            else:
                opened.add(node)
                waiting += self.children[node + 1][::-1]
        return tuple(order)


class Tables(NamedTuple):
    """The tables of a shape, on a device."""

    paths: Tensor  # [N + 1, N] the nodes on the way to each row, padded with -1
    ancestors: Tensor  # [N, N] bool: j is on the way to i, or is i
    earlier: Tensor  # [N, N] bool: j is a sibling of i and was drawn before it
    above: Tensor  # [N] the row of each node's parent
    upwards: Tensor  # [N] `Shape.upwards`
    tested: Tensor  # [N + 1] depths looked at by a walk down that ends at each row


def shape_of(draft: Draft) -> Shape:
    """Return the shape of a tree or a chain."""
    n = len(draft.tokens)
    parents = range(-1, n - 1) if draft.parents is None else draft.parents.tolist()
    return _shape(tuple(parents))


@lru_cache(KEPT)
def _shape(parents: tuple[int, ...]) -> Shape:
    return Shape(parents)


@lru_cache(KEPT)
def tables(shape: Shape, device: torch.device) -> Tables:
    """Make the tables of a shape on a device."""
    n = len(shape.parents)
    paths: list[list[int]] = [[]]
    for node, parent in enumerate(shape.parents):
        paths.append([*paths[parent + 1], node])
    ancestors, earlier = torch.zeros(2, n, n, dtype=torch.bool)
    for node, parent in enumerate(shape.parents):
        ancestors[node, paths[node + 1]] = True
        siblings = shape.children[parent + 1]
        earlier[node, list(siblings[: siblings.index(node)])] = True
    deep = [len(path) + bool(shape.children[at]) for at, path in enumerate(paths)]
    on_host = (
        torch.tensor([path + [-1] * (n - len(path)) for path in paths]).view(n + 1, n).long(),
        ancestors,
        earlier,
        numbers([parent + 1 for parent in shape.parents]),
        numbers(shape.upwards),
        numbers(deep),
    )
    return Tables(*(send(table, device) for table in on_host))


def verdict_at(shape: Shape, end: int, token: Tensor, tested: int) -> Verdict:
    """Make the verdict of a walk that ended at row `end`, followed by the [] token."""
    path = shape.path(end)
    padded = path + [-1] * (len(shape.parents) - len(path))
    return Verdict(numbers(padded), token, torch.tensor(tested))


def numbers(values: Sequence[int]) -> Tensor:
    """Return [n] int64, also of an empty list."""
    return torch.tensor(values, dtype=torch.int64)


def walked_down(passed: Tensor, of_shape: Tables) -> Tensor:
    """Return [], the last row of a walk to the first child that `passed` [N] at each node.

    Row 0 is the context: no child of it passed.
    """
    kept = passed & ~(of_shape.earlier & passed).any(-1)
    reached = (kept | ~of_shape.ancestors).all(-1)
    rows = torch.arange(1, len(passed) + 1, device=passed.device)
    return torch.cat([rows.new_zeros(1), rows.where(reached, 0)]).amax()


def path_to(end: Tensor, of_shape: Tables) -> Tensor:
    """Return [N], the nodes on the path to a [] row, padded with -1."""
    return row(of_shape.paths, end)
