"""From a source of likely followers to a draft: one path, or a tree whose best nodes come first.

A *place* is wherever a source stands after some tokens: a state of an automaton, a token.
"""

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple, TypeVar

import torch

from spsbench.loop.types import Draft

Place = TypeVar("Place")


class Grown(NamedTuple):
    """Tokens in the order in which they were added, parents before children."""

    tokens: list[int]
    parents: list[int] | None  # None: each follows the one before
    expected: float  # sum of the chances of all paths: tokens that would be kept if they were right

    def draft(self) -> Draft:
        """As the loop takes it: drawn by rule."""
        parents = None if self.parents is None else torch.tensor(self.parents, dtype=torch.int64)
        return Draft(torch.tensor(self.tokens, dtype=torch.int64), None, parents)


NOTHING = Grown([], None, 0.0)

Followers = Callable[[Place], Iterable[tuple[float, int, Place]]]
"""A place -> chance of each token that may follow, the token, the place after it; likeliest first.

Tokens of one place are distinct.
"""


def chain(root: Place, followers: Followers[Place], depth: int, least: float = 0.0) -> Grown:
    """Follow the likeliest token up to `depth` times, while the chance of them all is `least`."""
    tokens: list[int] = []
    place, chance, expected = root, 1.0, 0.0
    for _ in range(depth):
        best = next(iter(followers(place)), None)
        if best is None or chance * best[0] < least:
            break
        chance *= best[0]
        expected += chance
        tokens.append(best[1])
        place = best[2]
    return Grown(tokens, None, expected)


def tree(
    root: Place, followers: Followers[Place], depth: int, nodes: int, least: float = 0.0
) -> Grown:
    """Add the likeliest path of all that could be added, until there are `nodes`.

    Args:
        depth: of the deepest node; 1 is a child of the context.
        least: chance of a path below which it is not added.
    """
    tokens: list[int] = []
    parents: list[int] = []
    expected, order = 0.0, count()
    ahead: list[tuple[float, int, int, int, int, Place]] = []

    def offer(place: Place, parent: int, level: int, chance: float) -> None:
        for share, token, there in followers(place) if level <= depth else ():
            if chance * share < least:
                return  # they come likeliest first
            heapq.heappush(ahead, (-chance * share, next(order), token, parent, level, there))

    offer(root, -1, 1, 1.0)
    while ahead and len(tokens) < nodes:
        minus, _, token, parent, level, there = heapq.heappop(ahead)
        tokens.append(token)
        parents.append(parent)
        expected -= minus
        offer(there, len(tokens) - 1, level + 1, -minus)
    return Grown(tokens, parents, expected)


def within(nodes: int, fitting: int | None) -> int:
    """The smaller of what was asked for and what fits the target's context (None = any)."""
    return nodes if fitting is None else min(nodes, fitting)
