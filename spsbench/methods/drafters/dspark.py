"""DSpark: DFlash with a coupling from token to token (arXiv 2607.05147), so a true chain.

A head without the coupling (`markov_rank` 0) has marginals, as DFlash has: draw from it with
`sampled=false`.
"""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.dflash import DFlashNetwork
from spsbench.methods.heads.dspark import DSparkNetwork
from spsbench.methods.heads.network import over_weights
from spsbench.methods.heads.parallel import ParallelFrontier


class DSpark(HeadDrafter):
    """Opens as a chain or a tree over a head of block diffusion; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's features, as keys and values of every layer."""
        head, target = site.head(), site.target()
        kind = DSparkNetwork if head.description.shape.rank else DFlashNetwork
        network = site.network(lambda: over_weights(kind, head, target))
        return ParallelFrontier(network, target, site.cache())
