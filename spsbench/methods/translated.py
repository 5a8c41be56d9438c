"""A draft model that reads the text in tokens of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.loop.types import LM
from spsbench.models.translation.translator import ByText, SameTokens, Translator
from spsbench.models.translation.vocabulary import Vocabularies


def translator_of(both: Vocabularies | None) -> Translator:
    """Between two vocabularies, or where there is but one."""
    return SameTokens() if both is None else ByText(both.target, both.draft)


class OwnTokens:
    """A session whose cache follows the text in the draft's tokens.

    What the cache holds is compared with the text's tokens, and fed from the first that differs:
    a text is cut otherwise near its end when more of it is there, never far from it.
    """

    def __init__(self, lm: LM, translator: Translator) -> None:
        self.lm, self.translator = lm, translator
        self._cached: list[int] = []
        self._pending: list[int] = []  # of the text, not fed yet

    def begin(self, prompt: Sequence[int]) -> None:
        """Read a prompt, all but its newest token, unless it does not fit."""
        self.translator.restart()
        self.lm.commit(0)
        self._cached, self._pending = [], []
        ids = self.translator.follow(prompt)
        if ids and self.room(len(ids), 1):
            self.lm.append(torch.tensor(ids[:-1], dtype=torch.int64), keep=0)
            self._cached = ids[:-1]

    def align(self, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor | None:
        """Drop from the cache what the text is not: [m] what is to be fed next, at least one token.

        None where the text cannot be written, or fills the draft's context.

        Args:
            tokens: of the target.
            drafted: the draft's tokens that were fed after what `align` gave the last time.
        """
        self._cached += drafted
        self._pending = []
        ids = self.translator.follow(tokens)
        if not ids or not self.room(len(ids), 1):
            return None
        kept = min(common(self._cached, ids), len(ids) - 1)
        self.lm.commit(kept)
        self._cached, self._pending = ids[:kept], ids[kept:]
        return torch.tensor(ids[kept:], dtype=torch.int64)

    def logits(self, feed: Tensor) -> Tensor:
        """[1, V] after what `align` gave, or after tokens that are drafted."""
        found = self.lm.append(feed, keep=1).logits
        self._cached += self._pending
        self._pending = []
        return found

    def room(self, length: int, k: int) -> int:
        """How many of `k` tokens can be drafted after `length` of them; the last is never fed."""
        limit = self.lm.limit
        return k if limit is None else max(0, min(k, limit - length + 1))

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self._cached) + len(self._pending)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning, by slices: long texts are compared each round."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
