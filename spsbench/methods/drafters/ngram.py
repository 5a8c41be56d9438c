"""Prompt lookup: the text so far drafts for itself (Saxena 2023, "Prompt Lookup Decoding").

The longest n-gram that ends the text and occurred before is found, the most recent occurrence
first, and what followed it is drafted: fewer than K tokens when less is there, none when nothing
matches. The index grows with the text, so that a round costs O(new tokens), not O(text).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Scores


@dataclass
class NgramDrafter(Drafter):
    """Copies what followed the last `n` (down to `min_n`) tokens where they occurred before."""

    drawn = Drawn.POINT

    n: int = 4
    min_n: int = 2
    _ends: dict[tuple[int, ...], int] = field(default_factory=dict, init=False, repr=False)
    _indexed: int = field(default=0, init=False, repr=False)  # tokens whose n-grams are in _ends

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.n:
            raise ValueError(f"n is {self.n}, min_n {self.min_n}: expected 1 <= min_n <= n")

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        """Forget the last text."""
        self._ends.clear()
        self._indexed = 0

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        """At most `k` tokens; without a match or at k = 0 none."""
        x = context.tokens
        self._index(x)
        end = self._match(x)
        copied = [] if end is None else list(x[end : end + k])
        return Draft(torch.tensor(copied, dtype=torch.int64), None)

    def _index(self, x: Sequence[int]) -> None:
        """Add every n-gram that ends before the newest token; later ones replace earlier ones."""
        for end in range(self._indexed + 1, len(x)):
            for n in range(self.min_n, min(self.n, end) + 1):
                self._ends[tuple(x[end - n : end])] = end
        self._indexed = max(self._indexed, len(x) - 1)

    def _match(self, x: Sequence[int]) -> int | None:
        for n in range(min(self.n, len(x)), self.min_n - 1, -1):
            end = self._ends.get(tuple(x[-n:]))
            if end is not None:
                return end
        return None
