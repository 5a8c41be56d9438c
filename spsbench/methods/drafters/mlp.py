"""MLP speculators: a small recurrent state over the last hidden state (arXiv 2404.19124)."""

from spsbench.loop.site import Site
from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.mlp import MlpNetwork
from spsbench.methods.heads.network import filled, on_meta
from spsbench.methods.heads.parallel import ParallelFrontier


class Mlp(HeadDrafter):
    """Opens as a chain or a tree over Mlp's network; see `headed.Drawing`."""

    @classmethod
    def frontier(cls, site: Site) -> ParallelFrontier:
        """Over the target's last hidden state."""
        head, target = site.head(), site.target()
        shape, layers = head.description.shape, target.config.num_hidden_layers

        def make() -> MlpNetwork:
            return filled(on_meta(lambda: MlpNetwork(shape, layers)), dict(head.tensors))

        return ParallelFrontier(site.network(make), target, site.cache())
