"""P-EAGLE: EAGLE-3's network, trained to foretell several tokens in one pass.

Source: vllm-project/speculators, `models/peagle`. Rows of tokens that are not drafted yet hold one
learnt feature and the embedding of one mask token, and see the text and each other causally. So the
law of a slot knows nothing of what is drawn before it: still the law that its token is drawn from.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Context
from spsbench.methods.drafters.eagle3 import Eagle3, Eagle3Network
from spsbench.methods.heads.frontier import HeadFrontier


class ParallelFrontier(HeadFrontier):
    """A frontier that computes the laws of all depths in one pass, on the second request."""

    network: Eagle3Network

    def __init__(
        self, network: Eagle3Network, target: TargetParts, cache: Cache, together: Together = alone
    ) -> None:
        super().__init__(network, target, cache, together)
        shape, parts = network.shape, len(network.layers)
        self._token, self._rows_ahead = shape.mask_token, shape.at_once - 1
        with torch.inference_mode():
            self._mask = network.fuse(network.mask_hidden[0].chunk(parts, -1))  # [1, H]
        self._ahead: Tensor | None = None
        self._deep = {-1: 0}  # node -> its depth, from 1

    def settle(self, context: Context) -> None:
        self._ahead, self._deep = None, {-1: 0}
        super().settle(context)

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        at = self._deep[parents[0]]
        self._deep.update(dict.fromkeys(nodes, at + 1))
        if self._ahead is None or at >= len(self._ahead):
            self._ahead = self._foretold(max(self._rows_ahead, at + 1))
        return self._ahead[at].expand(len(nodes), -1)

    def roll_out(self, u: Tensor, warp: Warp) -> None:
        """Return None: nothing that is drawn is fed."""

    def _foretold(self, m: int) -> Tensor:
        """Return [m, V] logits of the slots after the first."""
        device, start = self._target.device, self._read
        self._cache.keep(start)
        masks = torch.full((m,), int(self._token or 0), dtype=torch.int64, device=device)
        features = self._mask.expand(m, -1)
        outputs = self._pass(features, masks, *self._chain(m), self._cache)
        return self._spread(self._scores(outputs))


class PEagle(Eagle3):
    """A chain or tree drafter over a P-EAGLE head; its arguments are those of `eagle3`."""

    frontier = ParallelFrontier
