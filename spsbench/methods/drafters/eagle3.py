"""EAGLE-3 and 3.1: a layer over three hidden states, with a head of its own (arXiv 2503.01840)."""

from typing import Any

from spsbench.errors import UsageError
from spsbench.loop.site import Plan, Site
from spsbench.loop.types import Drafter
from spsbench.methods.drafters.headed import Drawing, HeadDrafter
from spsbench.methods.heads.eagle3 import Eagle3Network
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.methods.heads.network import over_weights
from spsbench.models.heads.formats.eagle3 import counted

CHOICES = ("", "raw", "normed")


class Eagle3(HeadDrafter):
    """Opens as a chain or a tree over a head of EAGLE-3's shape; see `headed.Drawing`.

    `residual`, `feedback` (raw or normed) and `features` (2-16-29, hidden states as transformers
    numbers them) say what a file leaves open, or says wrongly; `anyway`, that the target may have
    another name than the head's.
    """

    @classmethod
    def plan(
        cls,
        residual: str = "",
        feedback: str = "",
        features: str = "",
        anyway: bool = False,
        **arguments: Any,
    ) -> Plan:
        """By the arguments."""
        for name, value in {"residual": residual, "feedback": feedback}.items():
            if value not in CHOICES:
                raise UsageError(f"eagle3:{name}={value}: expected raw or normed. Choose one")
        counted(features)
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
    def frontier(cls, site: Site) -> HeadFrontier:
        """Over a head and the target that it was trained for."""
        head, target = site.head(), site.target()
        network = site.network(lambda: over_weights(Eagle3Network, head, target))
        return HeadFrontier(network, target, site.cache())
