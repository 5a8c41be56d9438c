"""Falcon: semi-autoregressive drafting, a block of k tokens a pass (arXiv 2412.12639).

The laws of a block are marginals, given the text and the blocks before it: that of a slot knows
nothing of what is drawn in the slots before it in its own block. They are the laws that tokens are
drawn from, so every rule that accepts the kind of draft is exact with them. The paper accepts the
target's likeliest tokens along a tree of the likeliest per slot; `siblings=top`, or `width`, with
`match` are that.
"""

from typing import Any

from spsbench.loop.site import Plan, Site
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.headed import Drawing, HeadDrafter
from spsbench.methods.heads.blocks import BlockFrontier
from spsbench.methods.heads.falcon import FalconNetwork
from spsbench.methods.heads.network import filled, on_meta, without_copy
from spsbench.models.heads.formats.falcon import answered


class Falcon(HeadDrafter):
    """Opens as a chain or a tree over a head of Falcon; see `headed.Drawing`.

    `recurrence` (text or none) says what a file of its authors leaves open; `anyway`, that the
    target may have another name than the head's.
    """

    @classmethod
    def plan(cls, recurrence: str = "", anyway: bool = False, **arguments: Any) -> Plan:
        """By the arguments."""
        answered(recurrence)
        return Drawing(**arguments).plan

    @classmethod
    def open(  # type: ignore[override]
        cls,
        site: Site,
        sampled: bool = True,
        shape: str | int = "",
        siblings: str = "distinct",
        width: int = 0,
        depth: int = 0,
        nodes: int = 60,
        recurrence: str = "",
        anyway: bool = False,
    ) -> Drafter:
        """As `Drawing` says; the shape has the answer by now."""
        drawing = Drawing(sampled, shape, siblings, width, depth, nodes)
        return drawing.over(cls.frontier(site))

    @classmethod
    def frontier(cls, site: Site) -> BlockFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        layers = target.config.num_hidden_layers

        def make() -> FalconNetwork:
            shape, tensors = without_copy(head.description.shape, head.tensors, target)
            return filled(on_meta(lambda: FalconNetwork(shape, layers)), tensors)

        return BlockFrontier(site.network(make), target, site.cache())
