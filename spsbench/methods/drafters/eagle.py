"""EAGLE-1, EAGLE-2 and HASS: one layer guesses the target's next feature (arXiv 2401.15077).

The three have the same network and differ in how it is trained and how its tree is shaped.
"""

from typing import Any

from spsbench.loop.site import Plan, Site, Weights
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.headed import Drawing
from spsbench.methods.heads.eagle import EagleNetwork
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.network import filled, on_meta, without_copy


class Eagle(Drafter):
    """Opens as a chain or a tree over a head of EAGLE-1's shape; see `headed.Drawing`."""

    weights = Weights.HEAD
    uses_target = True

    @classmethod
    def plan(cls, anyway: bool = False, **arguments: Any) -> Plan:
        """By the arguments."""
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
        anyway: bool = False,
    ) -> Drafter:
        """Over a head and the target that it was trained for; by its name, unless `anyway`."""
        head, target = site.head(), site.target()
        layers = target.config.num_hidden_layers

        def make() -> EagleNetwork:
            shape, tensors = without_copy(head.description.shape, head.tensors, target)
            return filled(on_meta(lambda: EagleNetwork(shape, layers)), tensors)

        frontier = HeadFrontier(site.network(make), target, site.cache())
        return Drawing(sampled, shape, siblings, width, depth, nodes).over(frontier)
