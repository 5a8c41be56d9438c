"""DFlash: a block of tokens by one pass of a small diffusion model (arXiv 2602.06036).

The laws of a block are marginals, and what is drawn from each on its own does not cohere: so tokens
come by rule, the likeliest ones, unless `sampled=true` is asked for. Trees of the best paths by
the product of marginals (`width`, `nodes`) are those of DDTree (arXiv 2604.12989).
"""

from typing import Any

from spsbench.loop.site import Plan, Site
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.headed import Drawing, HeadDrafter
from spsbench.methods.heads.dflash import DFlashNetwork
from spsbench.methods.heads.network import over_weights
from spsbench.methods.heads.parallel import ParallelFrontier


class DFlash(HeadDrafter):
    """Opens as a chain or a tree over a head of block diffusion; see `headed.Drawing`."""

    @classmethod
    def plan(
        cls, anyway: bool = False, sampled: bool = False, siblings: str = "top", **arguments: Any
    ) -> Plan:
        """By the arguments; by rule unless they say otherwise."""
        return Drawing(sampled, siblings=siblings, **arguments).plan

    @classmethod
    def open(  # type: ignore[override]
        cls,
        site: Site,
        sampled: bool = False,
        shape: str | int = "",
        siblings: str = "top",
        width: int = 0,
        depth: int = 0,
        nodes: int = 60,
        anyway: bool = False,
    ) -> Drafter:
        """As `Drawing` says."""
        drawing = Drawing(sampled, shape, siblings, width, depth, nodes)
        return drawing.over(cls.frontier(site))

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's features, as keys and values of every layer."""
        head, target = site.head(), site.target()
        network = site.network(lambda: over_weights(DFlashNetwork, head, target))
        return ParallelFrontier(network, target, site.cache())
