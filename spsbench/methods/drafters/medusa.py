"""Medusa: heads that each foretell one token further (arXiv 2401.10774).

Its laws are marginals: that of a depth knows nothing of the tokens drafted before it. They are the
laws that tokens are drawn from all the same, so exact rules may follow where Medusa's own accepts
what is typical.
"""

from torch import Tensor

from spsbench.errors import DataError
from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.medusa import MedusaNetwork
from spsbench.methods.heads.network import filled, on_meta
from spsbench.methods.heads.parallel import ParallelFrontier


class Medusa(HeadDrafter):
    """Opens as a chain or a tree over Medusa's network; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        shape, layers = head.description.shape, target.config.num_hidden_layers

        def make() -> MedusaNetwork:
            tensors = dict(head.tensors)
            ids = tensors.pop("token_map", None)
            network = filled(on_meta(lambda: MedusaNetwork(shape, layers)), tensors)
            network.ids = None if ids is None else mapped(ids, target.vocab_size)
            return network

        return ParallelFrontier(site.network(make), target, site.cache())


def mapped(ids: Tensor, vocab: int) -> Tensor:
    """[Vd] the tokens of a map.

    Raises:
        DataError: one that the target does not have, or one twice.
    """
    if not bool(((ids >= 0) & (ids < vocab)).all()) or len(set(ids.tolist())) < len(ids):
        raise DataError(
            f"token_map does not lead into a vocabulary of {vocab}: expected each row's token, "
            "none twice. Fetch the head again"
        )
    return ids
