"""EAGLE-3 and 3.1: a layer over three hidden states, with a head of its own (arXiv 2503.01840)."""

from typing import Self

from spsbench.errors import UsageError
from spsbench.loop.site import Drawn, Plan, Site, Weights
from spsbench.methods.heads.drafting import HeadDrafter
from spsbench.methods.heads.eagle3 import Eagle3Network
from spsbench.methods.heads.network import filled, known_ids, on_meta, without_copy

CHOICES = {"residual": ("", "raw", "normed"), "feedback": ("", "raw", "normed")}


class Eagle3(HeadDrafter):
    """A chain from a head of EAGLE-3's shape.

    `residual`, `feedback` (raw or normed) and `features` (2-16-29, hidden states as transformers
    numbers them) say what a file leaves open, or says wrongly.
    """

    weights = Weights.HEAD

    @classmethod
    def plan(
        cls, sampled: bool = True, residual: str = "", feedback: str = "", features: str = ""
    ) -> Plan:
        """Sampled tokens have laws; the likeliest ones come by rule."""
        for name, value in {"residual": residual, "feedback": feedback}.items():
            if value not in CHOICES[name]:
                raise UsageError(f"eagle3:{name}={value}: expected raw or normed. Choose one")
        if features and not all(each.isdecimal() for each in features.split("-")):
            raise UsageError(
                f"eagle3:features={features}: expected hidden states such as 2-16-29. Count them "
                "as transformers does, 0 being the embeddings"
            )
        drawn = Drawn.IID if sampled else Drawn.POINT
        return Plan(drawn, weights=Weights.HEAD, target=True)

    @classmethod
    def open(
        cls,
        site: Site,
        sampled: bool = True,
        residual: str = "",
        feedback: str = "",
        features: str = "",
    ) -> Self:
        """Over a head and the target that it was trained for; the shape has the answers by now."""
        head, target = site.head(), site.target()

        def make() -> Eagle3Network:
            shape, tensors = without_copy(head.description.shape, head.tensors, target)
            ids, tensors = known_ids(shape, tensors, target.vocab_size)
            network = filled(on_meta(lambda: Eagle3Network(shape)), tensors)
            network.ids = ids
            return network

        return cls(site.network(make), target, site.cache(), sampled)
