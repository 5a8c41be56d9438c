"""MLP speculators: a small recurrent state over the last hidden state (arXiv 2404.19124)."""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.mlp import MlpNetwork
from spsbench.methods.heads.network import over_layers
from spsbench.methods.heads.parallel import ParallelFrontier


class Mlp(HeadDrafter):
    """Opens as a chain or a tree over Mlp's network; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        network = site.network(lambda: over_layers(MlpNetwork, head, target))
        return ParallelFrontier(network, target, site.cache())
