"""A head that is fed a tree: features of the target in, a cache of its own, logits out.

What the head itself has guessed stands for the target's features only while a round is drafted.
When the target has scored the round, its own features replace the guesses for all that was kept,
and the rows of the rest are dropped; no kept row is ever computed again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.site import Cache, TargetParts
from spsbench.loop.transfer import send
from spsbench.loop.trees import block_visible, depths
from spsbench.loop.types import Context, Scores, Step
from spsbench.methods.drafters.frontier import Frontier
from spsbench.methods.heads.network import HeadNetwork

CHUNK = 512  # rows of a long prompt that are read at once


class HeadFrontier(Frontier):
    """The cache of a head while a draft grows in it; a chain is a tree of one child a node.

    A row holds the features of a token and the embedding of the next one: that of a node, the
    features after its parent and its own token.

    Args:
        network: of the head, with its weights.
        target: whose embeddings, and maybe head, it uses.
        cache: empty, for the layers of the head.
    """

    limit = None

    def __init__(self, network: HeadNetwork, target: TargetParts, cache: Cache) -> None:
        self.network, self.layers = network, network.layers
        self._target, self._cache = target, cache
        self._dtype = next(network.parameters()).dtype
        self._read = 0  # rows in the cache that hold features of the target
        self._newest: Tensor | None = None  # [H] the features after the last of them
        self._forget()

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Read the prompt: every token but the last has features by now."""
        self._cache.keep(0)
        self._read, self._newest = 0, None
        self._forget()
        if len(prompt) > 1:
            self._take([prefill.hidden[layer] for layer in self.layers], prompt[1:])

    @torch.inference_mode()
    def settle(self, context: Context) -> None:
        """Drop what was guessed, and read the target's features of what the last round kept."""
        self._cache.keep(self._read)
        self._forget()
        new = len(context.tokens) - 1 - self._read
        if new > 0 and context.last is not None:
            self._take(kept_rows(context.last, self.layers, new), context.tokens[-new:])

    def room(self, context: Context) -> int | None:
        """Any number: rotary positions have no end."""
        return None

    @torch.inference_mode()
    def root(self, context: Context) -> Tensor:
        """[1, V] logits after the text."""
        return self._logits(self._before([-1]))

    @torch.inference_mode()
    def feed(self, tokens: Tensor, nodes: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[n, V] logits after each of some nodes of one depth, in one pass; as `Frontier.feed`."""
        features = self._before(parents)
        for node, parent in zip(nodes, parents, strict=True):
            self._rows[node] = len(self._parents)
            self._parents.append(self._rows[parent] if parent >= 0 else -1)
        n, fed = len(nodes), torch.tensor(self._parents)
        places = self._read + depths(fed)[-n:]
        sees = torch.ones(n, self._read + len(fed), dtype=torch.bool)
        sees[:, self._read :] = block_visible(fed, n)
        device = self._target.device
        shown = None if bool(sees.all()) else send(sees, device)
        made = self._pass(features, send(tokens, device), send(places, device), shown)
        self._states.update(zip(nodes, made, strict=True))
        return self._logits(made)

    def _forget(self) -> None:
        super()._forget()
        self._states: dict[int, Tensor] = {}  # node -> [H] the features after it

    def _before(self, parents: Sequence[int]) -> Tensor:
        """[n, H] the features after some nodes, or after the text."""
        newest: Any = self._newest
        return torch.stack([newest if p < 0 else self._states[p] for p in parents])

    def _take(self, hidden: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Read hidden states of the target [m, Ht], and the m tokens after them."""
        device = self._target.device
        ids = send(torch.tensor(list(tokens), dtype=torch.int64), device)
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            features = self.network.fuse([state[part].to(self._dtype) for state in hidden])
            m, past = len(features), self._read
            sees = None
            if m > 1:
                sees = torch.ones(m, past + m, dtype=torch.bool, device=device).tril(past)
            places = torch.arange(past, past + m, device=device)
            self._newest = self._pass(features, ids[part], places, sees)[-1]
            self._read += m

    def _pass(self, features: Tensor, tokens: Tensor, places: Tensor, sees: Any) -> Tensor:
        """[m, H] features, [m] tokens after each, where they stand, what they see -> [m, H]."""
        embedded = self.network.embed(tokens, self._target.embed).to(self._dtype)
        return self.network.step(features, embedded, places, self._cache, sees)

    def _logits(self, states: Tensor) -> Tensor:
        """[n, H] -> [n, V] logits: none where the head knows no token."""
        size = self._target.vocab_size
        logits, ids = self.network.scores(states, self._their_head)[:, :size], self.network.ids
        if ids is None and logits.shape[1] == size:
            return logits
        if ids is None:
            ids = torch.arange(logits.shape[1], device=logits.device)
        return logits.new_full((len(logits), size), -torch.inf).index_copy(1, ids, logits)

    def _their_head(self, features: Tensor) -> Tensor:
        return self._target.head(features.to(self._target.dtype))


def kept_rows(last: Step, layers: Sequence[int], new: int) -> list[Tensor]:
    """Of each layer the rows [new, Ht] of what a round was fed and kept: the pending token first.

    Of a tree they lie along the accepted path.
    """
    hidden = [last.scores.hidden[layer] for layer in layers]
    if last.draft.parents is None:
        return [states[:new] for states in hidden]
    rows = torch.tensor([0, *(node + 1 for node in last.kept)])
    return [states.index_select(0, send(rows, states.device)) for states in hidden]
