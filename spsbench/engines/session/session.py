"""A session over a preallocated cache, with replayed passes where a model has been prepared.

Where every layer has a window, rows that have left it are forgotten: a long text takes no more
memory than a short one. `SPARE` of them stay, so that rejected tokens can be taken back; from
farther back the text is read again.
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.eager import EagerLM
from spsbench.engines.replay import MAX_ROWS, RollOut
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.engines.session.engine_config import get_prepared, threads
from spsbench.engines.session.joint import JointCache
from spsbench.engines.session.masks import SLIDING, SPARE, CausalMasks, Masks, PassInputs
from spsbench.loop.batch import Fed
from spsbench.loop.sampling import Warp, send


class FastLM(EagerLM):
    """A session over a preallocated cache; the arguments are those of `EagerLM`."""

    def _open(self) -> None:
        """Open empty caches and masks, as the last step of the constructor."""
        self._prepared = get_prepared(self.model)
        sliding = None if self.windows is None else self.windows.sliding
        self._cache: PreallocatedCache = PreallocatedCache(self.limit, sliding)
        self._forgets = self.windows is not None and self.windows.forgets
        self._fed: list[int] = []  # tokens that a cache which forgets may read again
        self._numbers = torch.arange(0)
        self._full_masks = CausalMasks(self.model.dtype, self.device)
        if self.windows is not None:
            self._window_masks = CausalMasks(self.model.dtype, self.device, self.windows.size)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        self._make_room(tokens)
        return super()._forward(tokens, keep, parents)

    def _run(self, inputs: PassInputs) -> Any:
        """Run a pass with the model's number of threads, by its replay where one can take it."""
        replay, cache, m = self._prepared.replay, inputs.cache, len(inputs.ids)
        with threads(self._prepared.choice.threads):
            if replay is None:
                return super()._run(inputs)
            if isinstance(cache, JointCache) and cache.layers and m <= MAX_ROWS:
                return replay.run(inputs, cache.end)
            if cache is not self._cache:
                return super()._run(inputs)
            return replay.run(inputs, self._length - cache.base + m)

    @torch.inference_mode()
    def roll_out(self, logits: Tensor, u: Tensor, warp: Warp) -> tuple[Tensor, Tensor] | None:
        """Feed n tokens, drawn by `u` [n] from `logits` [1, V], then from each pass's result.

        Returns tokens [n], and the logits [n, V] after each. None: no program does it for this
        model, or the context is too short; the tokens are to be fed one by one.
        """
        n, replay = len(u), self._prepared.replay
        end = self._length + n
        if replay is None or self.windows or self.layers or end > (self.limit or end):
            return None
        u = send(u, self.device).double().contiguous()
        ids, positions = torch.empty(n, dtype=torch.int64), self._positions(n, None)
        self._make_room(ids)
        inputs = PassInputs(ids, positions, None, self._cache, 1, (), self._length)
        rolled = RollOut(ids, u, warp, 0, self.vocab_size)
        with threads(self._prepared.choice.threads):
            rolled_logits = replay.roll_out(inputs, self._length + 1, logits, rolled)
        if rolled_logits is None:
            return None
        self._length = end
        return ids, rolled_logits[:, : self.vocab_size]

    def shares(self, fed: Fed) -> Hashable | None:
        m = len(fed.tokens)
        if m > MAX_ROWS or (kind := super().shares(fed)) is None:
            return None
        self._make_room(fed.tokens)
        return kind

    def _make_room(self, tokens: Tensor) -> None:
        """Make room for `tokens`, fed next, or OutOfMemoryError; forget rows no window sees."""
        if self._forgets and self.windows is not None:
            self._fed[self._length :] = tokens.tolist()
            first = self.windows.first(self._length - SPARE)
            if first - self._cache.base >= SPARE:
                self._cache.forget(first, 2 * SPARE)
        self._cache.reserve(self._length - self._cache.base + len(tokens))

    @contextmanager
    def _sharing(self, cache: JointCache) -> Iterator[None]:
        with super()._sharing(cache):
            if self._prepared.replay is not None and cache.rows <= MAX_ROWS:
                cache.prepare(self.model.dtype)
            yield

    def _joint_mask(self, m: int, parents: Tensor | None) -> Masks:
        masks = self._mask(m, parents)
        return masks[SLIDING] if self._forgets and isinstance(masks, Mapping) else masks

    def _expect(self, tokens: int) -> None:
        if not self._forgets:
            self._cache.reserve(tokens)

    @property
    def token_bytes(self) -> int:
        return self._cache.token_bytes

    def _positions(self, m: int, parents: Tensor | None) -> Tensor:
        if parents is not None:
            return super()._positions(m, parents)
        end = self._length + m
        if len(self._numbers) < end:
            self._numbers = torch.arange(2 * end, device=self.device)
        return self._numbers[self._length : end]

    def _mask(self, m: int, parents: Tensor | None) -> Masks:
        """Set where windows read from; return the mask of `m` tokens, None: transformers' own."""
        past = self._length
        if parents is not None:
            return self._branched(parents, m, past)
        full = self._full_masks.mask(past, m) if past and 1 < m <= MAX_ROWS else None
        if self.windows is None:
            return full
        first = self.windows.first(past)
        self._cache.look(first)
        if past == 0 or m > MAX_ROWS:
            return None
        bound = past + m >= self.windows.size  # at it, transformers makes a mask, of another kind
        return self.windows.masks(full, self._window_masks.mask(past - first, m) if bound else full)

    def _branched(self, parents: Tensor, m: int, past: int) -> Masks:
        full = self._full_masks.branched(past, m, parents)
        if self.windows is None:
            return full
        first = self.windows.first(min(past, past + m - len(parents)))
        self._cache.look(first)
        return self.windows.masks(full, self.windows.hide(full[..., first:], parents, m, past))

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Keep rows as `EagerLM._keep`; where a window sees forgotten ones, read the text again."""
        base = self._cache.base
        if self.windows is None or self.windows.first(length) >= base:
            self._cache.keep(length - base, [node - base for node in nodes])
            if self._forgets:
                self._fed[length:] = [self._fed[node] for node in nodes]
            return
        text = [*self._fed[:length], *(self._fed[node] for node in nodes)]
        self._cache.reset()
        self._length = 0
        self.append(torch.tensor(text, dtype=torch.int64), keep=0)
