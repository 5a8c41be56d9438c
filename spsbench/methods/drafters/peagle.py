"""P-EAGLE: EAGLE-3 whose depths come out of one pass (arXiv 2602.01469).

Its laws are marginals. They are sampled as they stand; `sampled=false` takes the likeliest.
"""

from typing import Any

from spsbench.loop.site import Plan, Site
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.eagle3 import check_answers
from spsbench.methods.drafters.headed import Drawing, HeadDrafter
from spsbench.methods.heads.network import filled, known_ids, on_meta, without_copy
from spsbench.methods.heads.parallel import ParallelFrontier
from spsbench.methods.heads.peagle import ParallelEagleNetwork


class PEagle(HeadDrafter):
    """Opens as a chain or a tree over a head of P-EAGLE; see `headed.Drawing`.

    `residual`, `feedback` and `features` say what a file leaves open, as for `eagle3`.
    """

    @classmethod
    def plan(
        cls,
        anyway: bool = False,
        residual: str = "",
        feedback: str = "",
        features: str = "",
        **arguments: Any,
    ) -> Plan:
        """By the arguments."""
        check_answers("peagle", residual, feedback, features)
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
        residual: str = "",
        feedback: str = "",
        features: str = "",
        anyway: bool = False,
    ) -> Drafter:
        """As `Drawing` says; the shape has the answers by now."""
        drawing = Drawing(sampled, shape, siblings, width, depth, nodes)
        return drawing.over(cls.frontier(site))

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over rows of the text as EAGLE-3 has them."""
        head, target = site.head(), site.target()

        def make() -> ParallelEagleNetwork:
            shape, given = head.description.shape, dict(head.tensors)
            hidden = given.pop("mask_hidden")
            inner, given = without_copy(shape.inner, given, target)
            ids, given = known_ids(inner, given, target.vocab_size)
            tensors = {f"inner.{name}": tensor for name, tensor in given.items()}
            whole = type(shape)(inner=inner, count=shape.count, mask=shape.mask)
            network = on_meta(lambda: ParallelEagleNetwork(whole))
            filled(network, {**tensors, "mask_hidden": hidden})
            network.ids = network.inner.ids = ids
            return network

        return ParallelFrontier(site.network(make), target, site.cache())
