"""Drafters over a head: a chain, a tree of a fixed shape, or a best-first tree.

Trees of a fixed shape are EAGLE-1's (section 4.1 of arXiv 2401.15077, siblings without
replacement), those that grow best first EAGLE-2's (section 4 of arXiv 2406.16858).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from spsbench.errors import UsageError
from spsbench.heads import falcon
from spsbench.heads.eagle3 import counted
from spsbench.heads.network import load_network
from spsbench.loop.drafter_context import DrafterContext, Drawn, Weights
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.frontier import Arguments, Frontier
from spsbench.methods.drafters.head_frontier import HeadFrontier, HiddenReader, SlotFrontier
from spsbench.methods.drafters.model import ChainDrafter
from spsbench.methods.drafters.parallel_frontier import BlockFrontier, ParallelFrontier
from spsbench.methods.drafters.shaped import ShapedDrafter, drawn_as, parents_of
from spsbench.methods.drafters.topk import MAX_NODES, TopkDrafter


@dataclass(frozen=True)
class HeadDrafter(Arguments):
    """The arguments of a drafter over a head, and the drafter that they open.

    A family names the `frontier` that grows drafts with its network; arguments of its own are
    further fields.

    Args:
        sampled: tokens of a chain are drawn from the head's probs; else the likeliest are taken.
        shape: widths of a fixed tree, as in 4x2x1; none = a chain.
        siblings: of a fixed tree: `distinct` (without replacement), `iid`, or `top`.
        width: of a tree that grows best first: nodes expanded a depth; 0 = no such tree.
        depth: of that tree; 0 = as deep as K.
        nodes: kept of that tree.
        anyway: the target may have another name than the one that the head was trained for.
    """

    ranges: ClassVar = {"width": (0, MAX_NODES), "depth": (0, MAX_NODES), "nodes": (1, MAX_NODES)}
    weights, uses_target = Weights.HEAD, True
    frontier: ClassVar[type[HiddenReader]]

    sampled: bool = True
    shape: str | int = ""
    siblings: str = "distinct"
    width: int = 0
    depth: int = 0
    nodes: int = 60
    anyway: bool = False

    def __post_init__(self) -> None:
        if self.shape and self.width:
            raise ValueError(
                f"shape is {self.shape!r} with width {self.width}: expected one of the two"
            )
        if self.shape:
            parents_of(self.shape)

    @property
    def drawn(self) -> Drawn:
        if self.shape:
            return drawn_as(self.siblings)
        return Drawn.IID if self.sampled and not self.width else Drawn.POINT

    @property
    def tree(self) -> bool:
        return bool(self.shape or self.width)

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Drafter:
        drafter, head, target = cls(**arguments), context.head(), context.target()
        network = context.network(lambda: load_network(head, target))
        return drafter.over(cls.frontier(network, target, context.cache(), context.together))

    def over(self, frontier: Frontier) -> Drafter:
        if self.shape:
            return ShapedDrafter(frontier, parents_of(self.shape), self.drawn)
        if self.width:
            return TopkDrafter(frontier, self.width, self.depth, self.nodes)
        return ChainDrafter(frontier, self.sampled)


class RecurrentHead(HeadDrafter):
    """A drafter over one layer for all depths: EAGLE-1's or an MTP layer."""

    frontier = HeadFrontier


class ParallelHead(HeadDrafter):
    """A drafter over heads that read the text once a round: Medusa's, an MLP speculator's ..."""

    frontier = ParallelFrontier


@dataclass(frozen=True)
class DFlash(HeadDrafter):
    """A drafter over a block-diffusion head; by default tokens come by rule."""

    frontier = ParallelFrontier

    sampled: bool = False
    siblings: str = "top"


@dataclass(frozen=True)
class Falcon(HeadDrafter):
    """A drafter over a Falcon head.

    Args:
        recurrence: `text` or `none`, which a file of its authors leaves open.
    """

    frontier = BlockFrontier

    recurrence: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        falcon.answered(self.recurrence)


@dataclass(frozen=True)
class Eagle3(HeadDrafter):
    """A drafter over a head of EAGLE-3's shape.

    Args:
        residual, feedback: `raw` or `normed`, where a file leaves it open or says it wrongly.
        features: hidden states, as in 2-16-29, likewise; transformers numbers them.
    """

    frontier: ClassVar[type[HiddenReader]] = HeadFrontier

    residual: str = ""
    feedback: str = ""
    features: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("residual", "feedback"):
            if (value := getattr(self, name)) not in ("", "raw", "normed"):
                raise UsageError(f"eagle3:{name}={value}: expected raw or normed. Choose one")
        counted(self.features)


class PEagle(Eagle3):
    """A drafter over a P-EAGLE head; its arguments are those of `eagle3`."""

    frontier = SlotFrontier
