"""The drafter that runs a head: features of the target in, a cache of its own, tokens out.

What the head itself has guessed stands for the target's features only while a round is drafted.
When the target has scored the round, its own features replace the guesses for all that was kept,
and the rows of the rest are dropped; no kept row is ever computed again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.loop.sampling import sample
from spsbench.loop.site import Cache, TargetParts
from spsbench.loop.transfer import send
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Purpose, Scores, Step
from spsbench.methods.heads.network import HeadNetwork

CHUNK = 512  # rows of a long prompt that are read at once


class HeadDrafter(Drafter):
    """A chain of tokens from a head: sampled, or the likeliest ones.

    Args:
        network: of the head, with its weights.
        target: whose embeddings, and maybe head, it uses.
        cache: empty, for the layers of the head.
        sampled: draw tokens from the head's laws; else take the likeliest of each.
    """

    uses_target = True

    def __init__(
        self, network: HeadNetwork, target: TargetParts, cache: Cache, sampled: bool = True
    ) -> None:
        self.drawn = Drawn.IID if sampled else Drawn.POINT
        self.layers = network.layers
        self.network, self._target, self._cache = network, target, cache
        self._dtype = next(network.parameters()).dtype
        self._read = 0  # rows in the cache that hold features of the target
        self._newest: Tensor | None = None  # [H] the features after the last of them

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Read the prompt: every token but the last has features by now."""
        self._cache.keep(0)
        self._read, self._newest = 0, None
        if len(prompt) > 1:
            self._take([prefill.hidden[layer] for layer in self.layers], prompt[1:])

    @torch.inference_mode()
    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Slot i uses DRAFT's uniform i; the round before is read first, also where K is 0."""
        self._cache.keep(self._read)
        self._catch_up(context)
        state = self._newest
        u = noise.uniform(Purpose.DRAFT, k) if self.drawn is Drawn.IID else None
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for i in range(k if state is not None else 0):
            if tokens:
                state = self._guess(state, tokens[-1], i - 1)
            law = self._law(context, state)
            if not go_on(law):
                break
            tokens.append(law.argmax() if u is None else sample(law, u[i]))
            laws.append(law)
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.stack(tokens), None if u is None else torch.stack(laws))

    def _catch_up(self, context: Context) -> None:
        """Replace what was guessed in the last round: rows of the target for all that was kept."""
        new = len(context.tokens) - 1 - self._read
        if new > 0 and context.last is not None:
            self._take(kept_rows(context.last, self.layers, new), context.tokens[-new:])

    def _take(self, hidden: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Read hidden states of the target [m, Ht], and the m tokens after them."""
        ids = send(torch.tensor(list(tokens), dtype=torch.int64), self._target.device)
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            features = self.network.fuse([state[part].to(self._dtype) for state in hidden])
            self._newest = self._pass(features, ids[part], self._read)[-1]
            self._read += len(features)

    def _guess(self, state: Any, token: Tensor, depth: int) -> Tensor:
        """The features after a drafted token, from guessed ones before it."""
        return self._pass(state[None], token[None], self._read + depth)[-1]

    def _pass(self, features: Tensor, tokens: Tensor, start: int) -> Tensor:
        """[m, H] features at `start` and after, [m] tokens after each -> [m, H]."""
        m = len(tokens)
        embedded = self.network.embed(tokens, self._target.embed).to(self._dtype)
        positions = torch.arange(start, start + m, device=tokens.device)
        sees = None
        if m > 1:
            sees = torch.ones(m, start + m, dtype=torch.bool, device=tokens.device).tril(start)
        return self.network.step(features, embedded, positions, self._cache, sees)

    def _law(self, context: Context, state: Any) -> Tensor:
        """[V] the law of the token after `state`: zero where the head knows no token."""
        size = self._target.vocab_size
        logits = self.network.scores(state[None], self._their_head)[:, :size]
        law = context.warp(logits)[0]
        ids = self.network.ids
        if ids is None:
            return law if len(law) == size else torch.nn.functional.pad(law, (0, size - len(law)))
        return law.new_zeros(size).index_copy(0, ids, law)

    def _their_head(self, features: Tensor) -> Tensor:
        return self._target.head(features.to(self._target.dtype))


def kept_rows(last: Step, layers: Sequence[int], new: int) -> list[Tensor]:
    """Of each layer the rows [new, Ht] of what a round was fed and kept: the pending token first.

    Of a tree they lie along the accepted path, which stays where it is: nothing is read.
    """
    hidden = [last.scores.hidden[layer] for layer in layers]
    if last.draft.parents is None:
        return [states[:new] for states in hidden]
    rows = torch.cat([last.verdict.path.new_zeros(1), last.verdict.path[: new - 1] + 1])
    return [states.index_select(0, rows) for states in hidden]
