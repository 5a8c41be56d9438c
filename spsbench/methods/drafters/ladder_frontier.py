"""The frontier of prediction layers, one a depth: MiMo-V2's three, Step-3.7's.

Layer k reads at row j what layer k - 1 wrote of that row, and the embedding of token j + 1 + k. So
its row j is final one token later than that of layer k - 1: each layer has a length of its own, and
one final row of the layer before waits for it. While a chain is drafted, the pass at depth k feeds
layer k the rows that only drafted tokens complete: k of them, the waiting one and those of the pass
before.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.session.masks import CausalMasks
from spsbench.heads.mtp import MtpLadder
from spsbench.loop.drafter_context import TargetParts
from spsbench.loop.sampling import send
from spsbench.loop.types import Context, Scores
from spsbench.methods.drafters.head_frontier import HiddenReader


class LadderFrontier(HiddenReader):
    """The caches of prediction layers while a chain grows in them."""

    network: MtpLadder

    def __init__(self, network: MtpLadder, target: TargetParts, cache: Any, *parts: Any) -> None:
        super().__init__(network, target, cache, *parts)
        self._stages: list[Any] = list(network.stages)
        self.deepest: int = len(self._stages)
        self._masks = CausalMasks(self._dtype, target.device, network.shape.window)

    def _keep(self, length: int) -> None:
        for k, layer in enumerate(self._cache.layers):  # type: ignore[attr-defined]
            layer.keep(max(0, length - k))

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._waiting: list[Tensor] = []  # [<= 1, H] final rows that the next layer has not read
        self._newest_tokens = torch.empty(0, dtype=torch.int64, device=self._target.device)
        super().begin(prompt, prefill)

    def _run_stage(self, k: int, start: int, features: Tensor, tokens: Tensor) -> Tensor:
        """Return layer k's [m, H] for features [m, H] and tokens [m], as its rows from `start`."""
        stage, m = self._stages[k], len(features)
        embedded = stage.embed(tokens, self._target.embed).to(self._dtype)
        window = self.network.shape.window
        sees = None if m == 1 and window is None else self._masks.mask(start, m)
        places = stage.rotary.rows(start, m, self._dtype)
        outputs: Tensor = stage.step(features, embedded, places, self._cache, sees)
        return outputs

    @torch.inference_mode()
    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        """Run all layers over the text's new tokens, keep waiting rows; return layer 0's last."""
        text, end = torch.cat([self._newest_tokens, tokens]), self._read + len(tokens)
        features = self._run_stage(0, self._read, self._stages[0].fuse(hidden), tokens)
        newest = features[-1]
        for k in range(1, self.deepest):
            waiting = self._waiting[k - 1] if k <= len(self._waiting) else features[:0]
            final = torch.cat([waiting, features])
            features, self._waiting[k - 1 : k] = final[:-1], [final[-1:]]
            if m := len(features):
                features = self._run_stage(k, end - k - m, features, text[-m:])
        self._newest_tokens = text[-self.deepest :]  # [<= layers]
        return newest

    @torch.inference_mode()
    def _root(self, context: Context) -> Tensor:
        """Forget the last draft; return the [1, V] logits of layer 0 after the text."""
        self._drafted = self._newest_tokens[:0]
        self._tentative = self._newest[None][:0]  # [<= K, H] rows that drafted tokens complete
        return self._spread(self._logits(0, self._newest[None]))

    @torch.inference_mode()
    def _feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Feed a chain's newest token to its depth's layer (< `deepest`); return [1, V] logits."""
        self._add(nodes, parents)
        self._drafted = torch.cat([self._drafted, send(tokens, self._target.device)])
        k = len(self._drafted)
        rows = torch.cat([self._waiting[k - 1], self._tentative])
        self._tentative = self._run_stage(k, self._read - k, rows, self._drafted)
        return self._spread(self._logits(k, self._tentative[-1:]))

    def _logits(self, k: int, rows: Tensor) -> Tensor:
        """Map [n, H] outputs of layer k to [n, V'] logits."""
        logits: Tensor = self._stages[k].scores(rows, self._their_head)
        return logits
