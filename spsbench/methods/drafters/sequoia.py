"""Trees of the best shape for measured acceptance (Sequoia, arXiv 2402.12374).

The best tree for an acceptance vector is found by dynamic programming (section 4.1).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spsbench.loop.types import Drafter, Drawn
from spsbench.methods.drafters.frontier import Arguments, Frontier
from spsbench.methods.drafters.shaped import ShapedDrafter, drawn_as

Floats = NDArray[np.float64]
MAX_NODES = 256  # nodes
DEEPEST = 32

ACCEPTED = "0.41/0.17/0.12/0.09/0.04/0.04/0.04/0.02"
"""Measured on the bundled pair at temperature 1, top children and match: `sibling_at` of a run."""


@dataclass(frozen=True)
class Sequoia(Arguments):
    """A tree drafter whose shape maximises tokens a round.

    The shape is found once, by dynamic programming (section 4.1 of the paper), so it depends on no
    token. Its depth is at most K: a smaller K cuts it.

    Args:
        nodes: of the tree at most.
        depth: at most.
        accept: the chance that the first, second ... child of a node is kept, of those looked at
            because none before it was: `sibling_at` of a run, with / between them.
        siblings: as of `tree`; `distinct` is the paper's.
    """

    tree: ClassVar[bool] = True
    ranges: ClassVar = {"nodes": (1, MAX_NODES), "depth": (1, DEEPEST)}

    nodes: int = 32
    depth: int = 8
    accept: str | float = ACCEPTED
    siblings: str = "top"

    def __post_init__(self) -> None:
        chances(self.accept)

    @property
    def drawn(self) -> Drawn:
        return drawn_as(self.siblings)

    def over(self, frontier: Frontier) -> Drafter:
        shape = best_shape(self.nodes, self.depth, chances(self.accept))
        return ShapedDrafter(frontier, shape, self.drawn)


@lru_cache(maxsize=32)
def best_shape(nodes: int, depth: int, accept: tuple[float, ...]) -> tuple[int, ...]:
    """Return the parents of the tree of most tokens, level by level."""
    return Table(nodes, depth, kept_chances(accept)).shape(nodes, depth)


def kept_chances(accept: tuple[float, ...]) -> Floats:
    """Return [B], the chance that the k-th child is kept, given that its parent was."""
    looked_at = np.cumprod([1.0, *(1 - np.array(accept[:-1]))])
    return np.asarray(looked_at * np.array(accept))


class Table:
    """The most expected tokens of trees up to a size, for each number of nodes and depth.

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
                    gains = chances[b] * below[:n] + gain[d, b + 1, n - 1 :: -1][:n]
                    first[d, b, n] = y = int(gains.argmax()) + 1
                    gain[d, b, n] = gains[y - 1]

    def tokens(self, nodes: int, depth: int) -> float:
        """Return the expected tokens of a round, the target's own included."""
        return 1 + float(self._gain[depth, 0, nodes])

    def shape(self, nodes: int, depth: int) -> tuple[int, ...]:
        """Return the parents of that tree, level by level."""
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


def chances(text: str | float) -> tuple[float, ...]:
    """Parse probabilities separated by `/`."""
    try:
        probabilities = tuple(float(part) for part in str(text).split("/"))
    except ValueError:
        probabilities = ()
    if not probabilities or not all(0 <= chance <= 1 for chance in probabilities):
        raise ValueError(f"accept is {text!r}: expected chances from 0 to 1, as in 0.6/0.2/0.1")
    return probabilities
