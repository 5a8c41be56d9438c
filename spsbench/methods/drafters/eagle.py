"""EAGLE-1, EAGLE-2 and HASS: one layer guesses the target's next feature (arXiv 2401.15077)."""

from typing import Self

from spsbench.loop.site import Drawn, Plan, Site, Weights
from spsbench.methods.heads.drafting import HeadDrafter
from spsbench.methods.heads.eagle import EagleNetwork
from spsbench.methods.heads.network import filled, on_meta, without_copy


class Eagle(HeadDrafter):
    """A chain from a head of EAGLE-1's shape, whatever it was trained by."""

    weights = Weights.HEAD

    @classmethod
    def plan(cls, sampled: bool = True) -> Plan:
        """Sampled tokens have laws; the likeliest ones come by rule."""
        drawn = Drawn.IID if sampled else Drawn.POINT
        return Plan(drawn, weights=Weights.HEAD, target=True)

    @classmethod
    def open(cls, site: Site, sampled: bool = True) -> Self:
        """Over a head and the target that it was trained for."""
        head, target = site.head(), site.target()
        layers = target.config.num_hidden_layers

        def make() -> EagleNetwork:
            shape, tensors = without_copy(head.description.shape, head.tensors, target)
            return filled(on_meta(lambda: EagleNetwork(shape, layers)), tensors)

        return cls(site.network(make), target, site.cache(), sampled)
