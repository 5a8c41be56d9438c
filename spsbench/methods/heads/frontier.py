"""The frontier of a recurrent head: target features in, a cache of its own, logits out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.replay import NetworkPass
from spsbench.engines.session.masks import CausalMasks
from spsbench.loop.drafter_context import Cache, TargetParts, Together, alone
from spsbench.loop.sampling import Warp, send
from spsbench.loop.trees import depths
from spsbench.loop.types import Context
from spsbench.methods.heads.layers import Places
from spsbench.methods.heads.network import HeadNetwork
from spsbench.methods.heads.reader import HiddenReader

MAX_SHARED_ROWS = 128  # of a pass that texts of a batch share


class HeadFrontier(HiddenReader):
    """The cache of a head while a draft grows in it; a chain is a tree of one child a node.

    A row holds the features of a token and the embedding of the next one: that of a node, the
    features after its parent and its own token.
    """

    network: HeadNetwork

    def __init__(
        self, network: Any, target: TargetParts, cache: Cache, together: Together = alone
    ) -> None:
        super().__init__(network, target, cache, together)
        self._masks = CausalMasks(self._dtype, target.device)

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        self._after_text = self._scores(self._before([-1]))
        return self._spread(self._after_text)

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        features, n, past = self._before(parents), len(nodes), len(self._parents)
        self._add(nodes, parents)
        if n == 1 and self._parents == list(range(-1, past)):
            places, sees = self._chain(1, past)
        else:
            above = torch.tensor(self._parents)
            positions = send(self._read + depths(above)[-n:], self._target.device)
            places = self.network.rotary(positions, self._dtype)
            sees = self._masks.branched(self._read + past, n, above)
        inputs = send(tokens, self._target.device), *places, features
        outputs = self._run("feed", self._feed, inputs, sees)[0]
        return self._noted(nodes, outputs)

    @torch.inference_mode()
    def roll_out(self, u: Tensor, warp: Warp) -> tuple[Tensor, Tensor] | None:
        """Feed n nodes of a chain, after `root`, each drawn from the law of the pass before it.

        Args:
            u: [n] float64 in [0, 1), by which tokens are drawn, up to rounding.
            warp: from logits to laws.

        Returns:
            Tokens [n], and the logits [n, V] after each; None: they are to be fed one by one.
        """
        features, n = self._before([-1]), len(u)
        first, width = torch.cat([features, self._after_text], 1), features.shape[1]
        places = self.network.rotary.rows(self._read, n, self._dtype)
        rolled = self._roll_out("feed", first, width, u, warp, places, self._cache)
        if rolled is None:
            return None
        self._add(range(n), range(-1, n - 1))
        return rolled[0], self._noted(range(n), rolled[1])

    def take_back(self, count: int) -> None:
        """Forget the newest `count` nodes that were fed."""
        del self._parents[len(self._parents) - count :]
        self._cache.keep(self._read + len(self._parents))

    def _forget(self) -> None:
        super()._forget()
        self._states: dict[int, Tensor] = {}  # node -> [H] the features after it

    def _before(self, parents: Sequence[int]) -> Tensor:
        """Return [n, H], the features after some nodes, or after the text."""
        newest: Any = self._newest
        return torch.stack([newest if p < 0 else self._states[p] for p in parents])

    def _add(self, nodes: Sequence[int], parents: Sequence[int]) -> None:
        """Add nodes to those that are fed."""
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)

    def _noted(self, nodes: Sequence[int], outputs: Tensor) -> Tensor:
        """Note [n, H + Vd] features and logits after some nodes; return the logits [n, V].

        Both are in one dtype: the wider, where the target's is another than the head's.
        """
        newest: Any = self._newest
        width = len(newest)
        self._states.update(zip(nodes, outputs[:, :width].to(newest.dtype), strict=True))
        return self._spread(outputs[:, width:])

    def _chain(self, m: int, past: int = 0) -> tuple[Places, Tensor | None]:
        """Return the places of m rows, `past` after the text's, and their mask."""
        start = self._read + past
        return (
            self.network.rotary.rows(start, m, self._dtype),
            None if m == 1 else self._masks.mask(start, m),
        )

    def _new_rows(self, hidden: Sequence[Tensor], tokens: Tensor) -> Tensor:
        at, sees = self._chain(len(tokens))
        inputs = tokens, *at, *hidden
        return self._run("read", self._fused, inputs, sees)[0, -1]

    def _run(self, name: str, plain: NetworkPass, inputs: Sequence[Tensor], sees: Any) -> Tensor:
        """Return `plain(inputs, sees, cache)`, by a program where there is one."""
        if self._replay is None:
            return plain(inputs, sees, self._cache)
        return self._replay.run(name, plain, inputs, sees, self._cache)

    def _fused(self, inputs: Sequence[Tensor], sees: Any, cache: Any) -> Tensor:
        tokens, positions, cos, sin, *hidden = inputs
        features = self.network.fuse(hidden)
        return self._pass(features, tokens, Places(positions, cos, sin), sees, cache)[None]

    def _feed(self, inputs: Sequence[Tensor], sees: Any, cache: Any) -> Tensor:
        tokens, positions, cos, sin, features = inputs
        outputs = self._pass(features, tokens, Places(positions, cos, sin), sees, cache)
        return torch.cat([outputs, self._scores(outputs)], -1)[None]

    def _pass(
        self, features: Tensor, tokens: Tensor, places: Places, sees: Any, cache: Any
    ) -> Tensor:
        """Run [m, H] features and the [m] tokens after them at `places`, under the mask `sees`.

        Texts of a batch share the pass, unless the rows are many: those of a prompt.
        """
        inputs = features, self._embed(tokens), places, cache, sees
        together = alone if len(features) > MAX_SHARED_ROWS else self._together
        outputs: Tensor = together((id(self.network), "step"), inputs, self.network.steps)
        return outputs

    def _scores(self, features: Tensor) -> Tensor:
        """Map [n, H] features to [n, Vd] logits."""
        return self._over_texts(
            "scores", lambda rows: self.network.scores(rows, self._their_head), features
        )
