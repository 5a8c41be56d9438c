"""P-EAGLE: EAGLE-3's network, trained to foretell several tokens in one pass.

Source: vllm-project/speculators, `models/peagle`. Rows of tokens that are not drafted yet hold one
learnt feature and the embedding of one mask token, and see the text and each other causally. So the
law of a slot knows nothing of what is drawn before it: still the law that its token is drawn from.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.site import Cache, Plan, Site, TargetParts, Weights
from spsbench.loop.types import Context, Drafter
from spsbench.methods.drafters.eagle3 import network_of
from spsbench.methods.drafters.headed import Drawing
from spsbench.methods.heads.eagle3 import Eagle3Network
from spsbench.methods.heads.frontier import HeadFrontier
from spsbench.models.heads.formats.eagle3 import counted


class ParallelFrontier(HeadFrontier):
    """A chain whose laws come from one pass, when the second of them is asked for."""

    network: Eagle3Network

    def __init__(self, network: Eagle3Network, target: TargetParts, cache: Cache) -> None:
        super().__init__(network, target, cache)
        shape, parts = network.shape, len(network.layers)
        self._token, self._rows_ahead = shape.mask_token, shape.at_once - 1
        with torch.inference_mode():
            self._mask = network.fuse(network.mask_hidden[0].chunk(parts, -1))  # [1, H]
        self._ahead: Tensor | None = None

    def settle(self, context: Context) -> None:
        """As `HeadFrontier.settle`."""
        self._ahead = None
        super().settle(context)

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[1, V] logits after a node of a chain, whatever its token is."""
        at = nodes[0]
        if self._ahead is None or at >= len(self._ahead):
            self._ahead = self._foretold(max(self._rows_ahead, at + 1))
        return self._ahead[at : at + 1]

    def _foretold(self, m: int) -> Tensor:
        """[m, V] logits of the slots after the first."""
        device, start = self._target.device, self._read
        self._cache.keep(start)
        masks = torch.full((m,), int(self._token or 0), dtype=torch.int64, device=device)
        sees = torch.ones(m, start + m, dtype=torch.bool, device=device).tril(start)
        places = torch.arange(start, start + m, device=device)
        return self._logits(self._pass(self._mask.expand(m, -1), masks, places, sees))


class PEagle(Drafter):
    """Opens as a chain over a head of P-EAGLE."""

    weights = Weights.HEAD
    uses_target = True

    @classmethod
    def plan(cls, sampled: bool = True, features: str = "", **arguments: Any) -> Plan:
        """By the arguments."""
        counted(features)
        return Drawing(sampled).plan

    @classmethod
    def open(  # type: ignore[override]
        cls,
        site: Site,
        sampled: bool = True,
        residual: str = "",
        feedback: str = "",
        features: str = "",
        anyway: bool = False,
    ) -> Drafter:
        """Over a head and the target that it was trained for."""
        head, target = site.head(), site.target()
        network = site.network(lambda: network_of(head, target))
        return Drawing(sampled).over(ParallelFrontier(network, target, site.cache()))
