"""Draft sessions over a part of the target's cache (StreamingLLM, Xiao et al. 2023, 2309.17453).

Keys keep the rotation of their own position, so a row is usable wherever it is stored: the first
rows and the newest ones are copied into a small cache whose order means nothing to attention
(MagicDec, arXiv 2408.11049, section 4). The target's rows are read and never written.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM, UnsupportedModelError, attends_each
from spsbench.engines.session.cache import PreallocatedCache, PreallocatedLayer
from spsbench.engines.session.masks import Masks
from spsbench.engines.session.session import FastLM
from spsbench.loop.batch import Fed
from spsbench.loop.drafter_context import CachePart
from spsbench.loop.sampling import Warp, send
from spsbench.loop.tree import additive_mask, node_positions
from spsbench.loop.types import LM, Scores


class PartialCache(PreallocatedCache):
    """The first `part.sinks` rows of another cache and, in a ring after them, the newest ones."""

    def __init__(self, most: int | None, part: CachePart) -> None:
        super().__init__(most)
        self.part = part

    def held(self, text: int) -> int:
        """Return the rows that are kept of `text` tokens."""
        return min(text, self.part.sinks + self.part.window)

    def positions(self, text: int) -> Tensor:
        """Return [n] the positions of the rows that are kept of `text` tokens."""
        slots = torch.arange(self.held(text))
        newest, sinks = text - 1, self.part.sinks
        ring = newest - (newest - slots) % self.part.window
        return torch.where(slots < sinks, slots, ring)

    def take(self, source: Any, begin: int, end: int) -> None:
        """Make the rows kept of `begin` tokens those of `end` >= `begin`, from cache `source`."""
        while len(self.layers) < len(source.layers):
            self.layers.append(PreallocatedLayer(None))
        for layer, whole in zip(self.layers, source.layers, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(whole.keys, whole.values)
            layer.length = self.held(begin)
        self.reserve(self.held(end))
        positions = self.positions(end)
        for layer, whole in zip(self.layers, source.layers, strict=True):
            base = getattr(whole, "base", 0)  # what it forgot is out of its windows
            slots = (positions >= max(begin, base)).nonzero().squeeze(1)
            for to, rows in (layer.keys, whole.keys), (layer.values, whole.values):
                to[:, :, slots] = rows[:, :, positions[slots] - base]
            layer.length = self.held(end)


class PartialLM(EagerLM):
    """A session that reads a part of another session's cache and the tokens that it is fed.

    `commit` brings the cache up to date with the other session's rows and drops its own, so rows of
    drafted tokens never outlive a round. Of a prompt, fed for no logits, nothing is computed.
    `model` is the target, `vocab_size` the rows of its logits that are tokens, `part` the rows to
    read. `source` returns the target's session, which is behind a text by its newest token; one
    that nobody else feeds is fed here (`feeds`), with all but the last of the first tokens.
    """

    plain: ClassVar[type[EagerLM]] = EagerLM

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocab_size: int | None = None,
        part: CachePart,
        source: Callable[[], EagerLM],
        feeds: bool = False,
    ) -> None:
        self.part, self._source, self._feeds = part, source, feeds
        self._text = 0  # tokens of which the rows are the target's
        super().__init__(model, vocab_size=vocab_size)

    def _open(self) -> None:
        super()._open()
        self._cache: PartialCache = PartialCache(self.limit, self.part)

    @property
    def length(self) -> int:
        return self._text + self._length - self._cache.held(self._text)

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Feed as `EagerLM.append` does; with `keep` 0, take over the source's rows of a prompt.

        `tokens` are then the whole prompt, and no hidden states come. A source that is fed here
        reads the prompt first, and all but the last token of the first pass after a `commit`.
        """
        if keep == 0:
            if self._feeds:
                self._source().append(tokens, keep=0)
            self.commit(len(tokens))
            return Scores(torch.empty(0, self.vocab_size, device=self.device), {})
        if self._feeds and self.length == self._text and len(tokens) > 1:
            self._source().append(tokens[:-1], keep=0)
            self.commit(self._text + len(tokens) - 1)
            tokens = tokens[-1:]
        return super().append(tokens, keep, parents)

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Take over what `part` keeps of the target's first `length` rows; drop the rows fed here.

        With `path`, 0, 1, 2 ..., at the `length` of the last call, the first of the rows fed here
        stay. A source that is fed here is emptied for `length` 0; a shorter one's length is taken.
        ValueError: another path, or a `length` beyond the target's, or below the last but not 0.
        """
        source = self._source()
        kept = self._cache.held(length) + len(path or ())
        chain = path is not None and list(path) == list(range(len(path)))
        if path and chain and length == self._text and kept <= self._length:
            self._length = kept
            self._cache.keep(kept)
            return
        if length == 0:
            self._text = 0
            if self._feeds:
                source.commit(0)
        if self._feeds:
            length = min(length, source.length)
        if path or not self._text <= length <= source.length:
            raise ValueError(
                f"commit of {length} tokens: expected {self._text} to {source.length}, the target's"
            )
        if length > self._text:
            self._cache.take(source._cache, self._text, length)
        self._text, self._length = length, self._cache.held(length)
        self._cache.keep(self._length)

    def _positions(self, m: int, parents: Tensor | None) -> Tensor:
        return super()._positions(m, parents) + (self.length - self._length)

    def _mask(self, m: int, parents: Tensor | None) -> Masks:
        """Return a pass's masks by positions of rows in the ring; without windows, the usual."""
        if self.windows is None:
            return super()._mask(m, parents)
        chain = torch.arange(-1, m - 1) if parents is None else parents
        full = additive_mask(chain, m, self._length, self.model.dtype)
        asks = node_positions(chain, m, self.length)
        fed_positions = torch.arange(self._text, self.length + m)
        keys = torch.cat([self._cache.positions(self._text), fed_positions])
        beyond = keys[None] <= asks[:, None] - self.windows.size
        near = full.masked_fill(beyond, torch.finfo(full.dtype).min)
        return self.windows.masks(send(full, self.device), send(near, self.device))

    def shares(self, fed: Fed) -> Any:
        attends_each(self.model, self.plain)  # its trial opens sessions over whole caches
        return super().shares(fed)


class PartialFastLM(PartialLM, FastLM):
    """A `PartialLM` with the passes of `FastLM`."""

    plain = FastLM

    def _open(self) -> None:
        super()._open()
        self._forgets = False  # its cache is a ring already

    def roll_out(self, logits: Tensor, u: Tensor, warp: Warp) -> None:
        """Return None: `commit` cannot take back only some of the drafted tokens."""


KINDS: dict[type, type[PartialLM]] = {EagerLM: PartialLM, FastLM: PartialFastLM}


def partial_session(
    model: PreTrainedModel,
    opened: Callable[[], LM],
    part: CachePart,
    source: Callable[[], Any] | None,
    vocab_size: int | None = None,
) -> LM:
    """Return a session that reads `part` of the cache of the session that `source` returns.

    `opened` opens a session as the engine does: one of its kind is returned, and with `source` None
    it is the source, fed here. UnsupportedModelError: a kind of session without rows to copy.
    """
    like: Any = opened()
    kind = KINDS.get(type(like))
    if kind is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} is run by {type(like).__name__}, which has no rows of keys "
            "and values to copy: expected a model with one cache for every length of a text"
        )
    find_source: Callable[[], Any] = source or (lambda: like)
    return kind(model, vocab_size=vocab_size, part=part, source=find_source, feeds=source is None)
