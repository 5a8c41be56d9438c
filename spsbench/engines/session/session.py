"""A session over a preallocated cache, with replayed layers where a model has been prepared."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from spsbench.engines.eager import EagerLM
from spsbench.engines.replay.layer_replay import MOST
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.engines.session.engine_config import prepared
from spsbench.engines.session.masks import CausalMasks, Masks
from spsbench.loop.trees import places


@contextmanager
def held() -> Iterator[None]:
    """Let SIGINT reach its handler only when the block is over.

    A replayed pass, a step of training and an exchange between ranks end whole: what an interrupt
    tears there would be seen by the next one. The block runs as it is where Python's handlers do
    not run: outside the main thread, and where SIGINT is ignored or not Python's.
    """
    before = signal.getsignal(signal.SIGINT)
    aside = threading.current_thread() is not threading.main_thread()
    if aside or before in (signal.SIG_IGN, signal.SIG_DFL, None):
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # else another handler has set a new one
            signal.signal(signal.SIGINT, before)
        for number in came:
            signal.raise_signal(number)


class FastLM(EagerLM):
    """A session over a preallocated cache; the arguments are those of `EagerLM`."""

    def _open(self) -> None:
        self._prepared = prepared(self.model)
        sliding = None if self.windows is None else self.windows.sliding
        self._past = PreallocatedCache(self.limit, sliding)
        self._positions = torch.arange(0)
        self._full_masks = CausalMasks(self.model.dtype, self.device)
        if self.windows is not None:
            self._window_masks = CausalMasks(self.model.dtype, self.device, self.windows.size)

    def _forward(self, tokens: Tensor, keep: int, parents: Tensor | None) -> Any:
        past, m = self._length, len(tokens)
        positions = self._numbers(past + m)[past : past + m]
        mask: Masks = None
        if parents is not None:
            positions = places(parents, m, past).to(self.device)
            mask = self._branched(parents, m, past)
        else:
            mask = self._causal(m, past)
        with self._running(past, m):
            out = self.model(
                input_ids=tokens[None].to(self.device),
                position_ids=positions[None],
                attention_mask=mask,
                past_key_values=self._past,
                use_cache=True,
                logits_to_keep=max(keep, 1),
                output_hidden_states=bool(self.layers),
            )
        self._length += m
        return out

    def _expect(self, tokens: int) -> None:
        self._past.reserve(tokens)

    @property
    def token_bytes(self) -> int:
        """Return the bytes of a token in the cache; 0 before the first."""
        return self._past.token_bytes

    def _causal(self, m: int, past: int) -> Masks:
        """Return the mask of a chain; None: a token sees everything, or transformers makes it."""
        full = self._full_masks.mask(past, m) if past and 1 < m <= MOST else None
        if self.windows is None:
            return full
        first = self.windows.first(past)
        self._past.look(first)
        if past == 0 or m > MOST:
            return None
        crossed = past + m > self.windows.size
        return self.windows.masks(
            full, self._window_masks.mask(past - first, m) if crossed else full
        )

    def _branched(self, parents: Tensor, m: int, past: int) -> Masks:
        full = self._full_masks.branched(past, m, parents)
        if self.windows is None:
            return full
        first = self.windows.first(min(past, past + m - len(parents)))
        self._past.look(first)
        return self.windows.masks(full, self.windows.hide(full[..., first:], parents, m, past))

    @contextmanager
    def _running(self, past: int, m: int) -> Iterator[None]:
        """Run with the model's number of threads and, in a small pass, replayed layers."""
        threads, replay = self._prepared.threads, self._prepared.replay
        before = torch.get_num_threads()
        if threads not in (None, before):
            torch.set_num_threads(threads)
        replays = replay is not None and past > 0 and m <= MOST
        self._past.reserve(past + m)
        if replay is not None and replays:
            replays = replay.begin(self._numbers(past + m)[: past + m], self._past)
        try:
            with held() if replays else nullcontext():
                yield
        finally:
            if replay is not None and replays:
                replay.end()
            if threads not in (None, before):
                torch.set_num_threads(before)

    def _numbers(self, least: int) -> Tensor:
        """Return 0, 1, 2 ... on the model's device, `least` numbers or more."""
        if len(self._positions) < least:
            self._positions = torch.arange(2 * least, device=self.device)
        return self._positions

    def _keep(self, length: int, nodes: list[int]) -> None:
        """Keep the rows of the cache: a chain moves nothing, a path moves its rows."""
        self._past.keep(length, nodes)
