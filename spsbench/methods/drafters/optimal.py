"""The best tree for an acceptance vector, by dynamic programming (arXiv 2402.12374, section 4.1).

The paper's assumption: whether the k-th child of a kept node is kept depends on k alone. Then a
node is kept with the product of such chances along its path, and the tokens of a round are the sum
of these products over the tree, and one.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Measured(NamedTuple):
    """What a shape is chosen by; without times it is the one of most tokens."""

    accept: tuple[float, ...]  # the k-th child is kept, given that it is looked at
    draft: float = 0.0  # ms of a pass of the draft model
    target: tuple[tuple[int, float], ...] = ()  # rows of a pass of the target -> its ms

    def round_ms(self, nodes: int, depth: int) -> float:
        """Of a round: a draft pass a depth, and a target pass; between measured rows a line."""
        rows, times = zip(*self.target, strict=True)
        return depth * self.draft + float(np.interp(nodes + 1, rows, times))

    @property
    def chances(self) -> Floats:
        """[B] that the k-th child is the one that is kept, given that its parent was."""
        looked_at = np.cumprod([1.0, *(1 - np.array(self.accept[:-1]))])
        return np.asarray(looked_at * np.array(self.accept))


@lru_cache(maxsize=32)
def best_shape(nodes: int, depth: int, measured: Measured) -> tuple[int, ...]:
    """The parents of the best tree, level by level.

    With times the number of tokens a ms decides among all sizes up to `nodes` and `depth`, else the
    number of tokens alone.
    """
    table = Table(nodes, depth, measured.chances)
    sizes = [(nodes, depth)]
    if measured.target:
        sizes = [(n, d) for n in range(1, nodes + 1) for d in range(1, depth + 1)]
    best = max(
        sizes,
        key=lambda at: table.tokens(*at) / (measured.round_ms(*at) if measured.target else 1.0),
    )
    return table.shape(*best)


class Table:
    """The most tokens of trees up to a size, for each number of nodes and depth.

    `gain[d][b][n]` is the most that n nodes bring as the children from the b-th on, and all below
    them, of a kept node with room for depth d: the first takes y of them, itself included.
    """

    def __init__(self, nodes: int, depth: int, chances: Floats) -> None:
        width = len(chances)
        self._gain = np.zeros((depth + 1, width + 1, nodes + 1))
        self._first = np.zeros((depth + 1, width + 1, nodes + 1), dtype=np.int64)
        gain, first = self._gain, self._first
        for d in range(1, depth + 1):
            below = 1 + gain[d - 1, 0]  # [nodes + 1] of a kept child with that many below it
            for b in range(width - 1, -1, -1):
                for n in range(1, nodes + 1):
                    # y = 1 ... n nodes for child b, the rest for those after it
                    each = chances[b] * below[:n] + gain[d, b + 1, n - 1 :: -1][:n]
                    first[d, b, n] = y = int(each.argmax()) + 1
                    gain[d, b, n] = each[y - 1]

    def tokens(self, nodes: int, depth: int) -> float:
        """Of a round, the target's own included."""
        return 1 + float(self._gain[depth, 0, nodes])

    def shape(self, nodes: int, depth: int) -> tuple[int, ...]:
        """The parents of that tree, level by level."""
        parents: list[int] = []
        level = [(-1, nodes, depth)]  # a node, and how many may be below it, how deep
        while level:
            after: list[tuple[int, int, int]] = []
            for parent, left, d in level:
                for b in range(self._first.shape[1] - 1 if d else 0):
                    if left <= 0:
                        break
                    taken = int(self._first[d, b, left])
                    after.append((len(parents), taken - 1, d - 1))
                    parents.append(parent)
                    left -= taken
            level = after
        return tuple(parents)
