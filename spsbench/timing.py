"""Where a round's time goes: stopwatches around the parts of the loop, in the same protocols."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.types import LM, Context, Draft, Drafter, Drawn, GoOn, Noise, Scores


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds spent inside `running()`.

    On an accelerator it waits for the work that was queued, so the parts of a round are told apart
    at the price of one synchronisation each.
    """

    device: torch.device
    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        self._wait()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            self.seconds += time.perf_counter() - began

    def lap(self) -> float:
        """The seconds since the last lap."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class TimedLM:
    """An `LM` under a stopwatch."""

    def __init__(self, lm: LM, watch: Stopwatch) -> None:
        self._lm, self._watch = lm, watch
        self.vocab_size, self.limit = lm.vocab_size, lm.limit

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._lm.length

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        """Timed, but for a prefill: it asks for no logits and belongs to no round."""
        if keep == 0:
            return self._lm.append(tokens, keep, parents)
        with self._watch.running():
            return self._lm.append(tokens, keep, parents)

    def commit(self, length: int, path: Sequence[int] | None = None) -> None:
        """Timed."""
        with self._watch.running():
            self._lm.commit(length, path)


class TimedDrafter(Drafter):
    """A `Drafter` under a stopwatch."""

    def __init__(self, drafter: Drafter, watch: Stopwatch) -> None:
        self._drafter, self._watch = drafter, watch
        self.tree, self.layers, self.limit = drafter.tree, drafter.layers, drafter.limit

    @property
    def drawn(self) -> Drawn:  # type: ignore[override]
        """As the drafter inside."""
        return self._drafter.drawn

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Not timed: it belongs to no round."""
        self._drafter.begin(prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """Timed."""
        with self._watch.running():
            return self._drafter.draft(context, k, noise, go_on)
