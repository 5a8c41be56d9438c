"""EAGLE-1, EAGLE-2 and HASS: one layer guesses the target's next feature (arXiv 2401.15077).

The three have the same network and differ in how it is trained and how its tree is shaped.
"""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.eagle import EagleNetwork
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.network import filled, on_meta, without_copy


class Eagle(HeadDrafter):
    """Opens as a chain or a tree over a head of EAGLE-1's shape; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> HeadFrontier:
        """Over a head and the target that it was trained for."""
        head, target = site.head(), site.target()
        layers = target.config.num_hidden_layers

        def make() -> EagleNetwork:
            shape, tensors = without_copy(head.description.shape, head.tensors, target)
            return filled(on_meta(lambda: EagleNetwork(shape, layers)), tensors)

        return HeadFrontier(site.network(make), target, site.cache())
