"""A tree of fixed widths over a draft model (SpecInfer: Miao et al. 2024, arXiv 2305.09781)."""

from typing import Any, Self

from spsbench.loop.site import Site
from spsbench.loop.types import LM, Plan
from spsbench.methods.drafters.shaped import ShapedDrafter, drawn_as

MOST = 512  # nodes


class TreeDrafter(ShapedDrafter):
    """`3x2x1`: three children of the text, two of each of those, one of each of these.

    Args:
        shape: the children of a node at each depth.
        siblings: `top`, the likeliest ones by rule; `iid`, drawn independently; `distinct`, drawn
            without replacement (section 4.3 of SpecInfer; EAGLE-1 and Sequoia draw so).
    """

    @classmethod
    def plan(
        cls, *args: Any, shape: str | int = "3x2x1", siblings: str = "top", **more: Any
    ) -> Plan:
        """How its siblings are drawn is in its arguments."""
        parents_of(shape)
        return Plan(drawn_as(siblings), True, cls.weights)

    @classmethod
    def open(cls, site: Site, shape: str | int = "3x2x1", siblings: str = "top") -> Self:
        """Over a session with the draft model."""
        return cls(site.session(), shape, siblings)

    def __init__(self, lm: LM, shape: str | int = "3x2x1", siblings: str = "top") -> None:
        super().__init__(lm, parents_of(shape), drawn_as(siblings))


def parents_of(shape: str | int) -> list[int]:
    """The parents of the nodes of a tree of these widths, level by level.

    Raises:
        ValueError: no widths from 1, or more than `MOST` nodes.
    """
    widths = str(shape).split("x")
    if not all(width.isdecimal() and int(width) > 0 for width in widths):
        raise ValueError(f"shape is {shape!r}: expected widths from 1, as in 3x2x1")
    parents, level = list[int](), [-1]
    for width in map(int, widths):
        if len(parents) + len(level) * width > MOST:
            raise ValueError(f"shape is {shape!r}: expected at most {MOST} nodes")
        first = len(parents)
        parents += [above for above in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return parents
