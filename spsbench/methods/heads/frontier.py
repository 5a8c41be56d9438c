"""The frontier of a recurrent head: target features in, a cache of its own, logits out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.drafter_context import alone
from spsbench.loop.sampling import send
from spsbench.loop.trees import block_visible, depths
from spsbench.loop.types import Context
from spsbench.methods.heads.reader import HiddenReader, causal

MOST = 128  # rows of a pass that texts of a batch share


class HeadFrontier(HiddenReader):
    """The cache of a head while a draft grows in it; a chain is a tree of one child a node.

    A row holds the features of a token and the embedding of the next one: that of a node, the
    features after its parent and its own token.
    """

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        """Return the [1, V] logits after the text."""
        return self._logits(self._before([-1]))

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return [n, V] logits after nodes of one depth, in one pass; see `Frontier.feed`."""
        features = self._before(parents)
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)
        n, fed, device = len(nodes), torch.tensor(self._parents), self._target.device
        places, sees = self._read + depths(fed)[-n:], block_visible(fed, n)
        shown = None
        if not bool(sees.all()):
            shown = send(torch.cat([sees.new_ones(n, self._read), sees], 1), device)
        made = self._pass(features, send(tokens, device), send(places, device), shown)
        self._states.update(zip(nodes, made, strict=True))
        return self._logits(made)

    def _forget(self) -> None:
        super()._forget()
        self._states: dict[int, Tensor] = {}  # node -> [H] the features after it

    def _before(self, parents: Sequence[int]) -> Tensor:
        """Return [n, H], the features after some nodes, or after the text."""
        newest: Any = self._newest
        return torch.stack([newest if p < 0 else self._states[p] for p in parents])

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor, places: Tensor) -> Tensor:
        features = self.network.fuse(hidden)
        sees = causal(len(tokens), self._read, places.device)
        return self._pass(features, tokens, places, sees)[-1]

    def _pass(self, features: Tensor, tokens: Tensor, places: Tensor, sees: Any) -> Tensor:
        """Run [m, H] features and the [m] tokens after them at `places`, under the mask `sees`.

        Texts of a batch share the pass, unless the rows are many: those of a prompt.
        """
        given = features, self._embed(tokens), places, self._cache, sees
        together = alone if len(features) > MOST else self._together
        made: Tensor = together((id(self.network), "step"), given, self.network.steps)
        return made

    def _logits(self, states: Tensor) -> Tensor:
        """Map [n, H] to [n, V] logits."""
        return self._over_texts(
            "scores", lambda rows: self._spread(self.network.scores(rows, self._their_head)), states
        )
