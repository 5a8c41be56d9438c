"""Drafters over a head: a chain, a tree of a fixed shape, or a best-first tree.

Trees of a fixed shape are EAGLE-1's (section 4.1 of arXiv 2401.15077, siblings without
replacement), those that grow best first EAGLE-2's (section 4 of arXiv 2406.16858).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from spsbench.errors import UsageError
from spsbench.heads.families import VALUES
from spsbench.heads.files import hidden_states
from spsbench.heads.mtp import MtpLadder
from spsbench.heads.network import load_network
from spsbench.loop.drafter_context import DrafterContext, Drawn, Weights
from spsbench.loop.tree import MAX_NODES
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.frontier import Arguments, Frontier
from spsbench.methods.drafters.head_frontier import HeadFrontier, HiddenReader, SlotFrontier
from spsbench.methods.drafters.ladder_frontier import LadderFrontier
from spsbench.methods.drafters.model import ChainDrafter
from spsbench.methods.drafters.parallel_frontier import BlockFrontier, ParallelFrontier
from spsbench.methods.drafters.shaped import ShapedDrafter, drawn_as, parents_of
from spsbench.methods.drafters.topk import TopkDrafter


@dataclass(frozen=True)
class HeadDrafter(Arguments):
    """The arguments of a drafter over a head, and the drafter that they open.

    A family may name another `frontier`, which grows drafts with its network; arguments of its own
    are further fields.

    Args:
        sampled: tokens of a chain are drawn from the head's probs; else the likeliest are taken.
        shape: widths of a fixed tree, as in 4x2x1; none = a chain.
        siblings: children in a fixed tree: `distinct` (without replacement), `iid`, or `top`.
        width: nodes expanded a depth in a tree that grows best first; 0 = no such tree.
        depth: depth of that tree; 0 = as deep as K.
        nodes: kept of that tree.
        features: hidden states that the head reads, as in 2-16-29, counted as transformers does;
            none = as its files say.
        anyway: the target may have another name than the one that the head was trained for.
    """

    ranges: ClassVar = {"width": (0, MAX_NODES), "depth": (0, MAX_NODES), "nodes": (1, MAX_NODES)}
    weights, uses_target = Weights.HEAD, True
    frontier: ClassVar[type[HiddenReader]] = HeadFrontier

    sampled: bool = True
    shape: str | int = ""
    siblings: str = "distinct"
    width: int = 0
    depth: int = 0
    nodes: int = 60
    features: str | int = ""
    anyway: bool = False

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        for flag, values in VALUES.items():
            if values and (answer := getattr(self, flag, "")) not in ("", *values):
                expected = " or ".join(values)
                raise UsageError(f"{name}:{flag}={answer}: expected {expected}. Choose one")
        hidden_states(self.features, name)
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
        frontier = drafter.frontier_of(network)
        return drafter.over(frontier(network, target, context.cache(), context.together))

    def frontier_of(self, network: Any) -> type[HiddenReader]:
        """Return the frontier that grows drafts with `network`; UsageError: it cannot do so."""
        return self.frontier

    def over(self, frontier: Frontier) -> Drafter:
        if self.shape:
            return ShapedDrafter(frontier, parents_of(self.shape), self.drawn)
        if self.width:
            return TopkDrafter(frontier, self.width, self.depth, self.nodes)
        return ChainDrafter(frontier, self.sampled)


@dataclass(frozen=True)
class Eagle(HeadDrafter):
    """A drafter over a head of EAGLE-1's shape.

    `order` is the half of `fc` that reads first, `embedding` or `feature`.
    """

    order: str = ""


@dataclass(frozen=True)
class Eagle3(HeadDrafter):
    """A drafter over a head of EAGLE-3's shape.

    Args:
        residual, feedback: `raw` or `normed`, where a file leaves it open or says it wrongly.
        output: likewise, before the head.
    """

    residual: str = ""
    feedback: str = ""
    output: str = ""


class PEagle(Eagle3):
    """A drafter over a P-EAGLE head; its arguments are those of `eagle3`."""

    frontier = SlotFrontier


@dataclass(frozen=True)
class Mtp(HeadDrafter):
    """A drafter over prediction layers of the target's own.

    Args:
        order: the half of `fc` that reads first, `embedding` or `feature`.
        feature: the target's hidden state before (`raw`) or after (`normed`) its last norm.
        feedback: likewise, of the layer, for the next depth.
        norms: `one` or `zero`, from which the weights of norms count.
    """

    order: str = ""
    feature: str = ""
    feedback: str = ""
    norms: str = ""

    def frontier_of(self, network: Any) -> type[HiddenReader]:
        """Return the frontier for `network`; UsageError: a tree over an `MtpLadder`."""
        if not isinstance(network, MtpLadder):
            return self.frontier
        if self.tree:
            raise UsageError(
                "a tree over prediction layers, one a depth: expected a chain. Leave shape and "
                "width out of the drafter"
            )
        return LadderFrontier


class ParallelHead(HeadDrafter):
    """A drafter over heads that read the text once a round: Medusa's, blockwise, DSpark's."""

    frontier = ParallelFrontier


@dataclass(frozen=True)
class Mlp(ParallelHead):
    """A drafter over an MLP speculator.

    `scaled` is `yes` or `no`, whether the hidden state is normed first.
    """

    scaled: str = ""


@dataclass(frozen=True)
class DFlash(ParallelHead):
    """A drafter over a block-diffusion head; by default tokens come by rule."""

    sampled: bool = False
    siblings: str = "top"


@dataclass(frozen=True)
class Falcon(HeadDrafter):
    """A drafter over a Falcon head.

    `recurrence` is `text` or `none`, which a file of its authors leaves open.
    """

    frontier = BlockFrontier

    recurrence: str = ""
