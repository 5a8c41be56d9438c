"""MTP: the layer that a target was trained with, to foretell one token more (arXiv 2412.19437)."""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.mtp import MtpNetwork
from spsbench.methods.heads.network import over_layers


class Mtp(HeadDrafter):
    """Opens as a chain or a tree over such a layer, one for all depths; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> HeadFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        network = site.network(lambda: over_layers(MtpNetwork, head, target))
        return HeadFrontier(network, target, site.cache())
