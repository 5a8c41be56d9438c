"""An engine: a model as transformers runs it, with its passes counted."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spsbench.engines.eager import Eager, EagerLM
from spsbench.loop.types import Scores

passes = 0


class CountingLM(EagerLM):
    """A session that counts its passes."""

    def append(self, tokens: Tensor, keep: int, parents: Tensor | None = None) -> Scores:
        global passes
        passes += len(tokens) > 0
        return super().append(tokens, keep, parents)


class Counting(Eager):
    """As transformers runs it, counted."""

    def session(
        self, model: Any, *, vocab_size: int | None = None, layers: Sequence[int] = ()
    ) -> CountingLM:
        return CountingLM(model, vocab_size=vocab_size, layers=layers)
