"""Blockwise parallel decoding: the first speculative method (Stern et al. 2018, arXiv 1811.03115).

The paper accepts what is the likeliest token of the target; by `match` or `sps` any temperature
is exact.
"""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.blockwise import BlockwiseNetwork
from spsbench.methods.heads.network import over_layers
from spsbench.methods.heads.parallel import ParallelFrontier


class Blockwise(HeadDrafter):
    """Opens as a chain or a tree over Blockwise's network; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        network = site.network(lambda: over_layers(BlockwiseNetwork, head, target))
        return ParallelFrontier(network, target, site.cache())
