"""Prompt lookup: the text so far drafts for itself (Saxena 2023, "Prompt Lookup Decoding").

An n-gram that ends the text and occurred before is found, and what followed it is drafted: fewer
than K tokens when less is there, none when nothing matches. The index grows with the text, so that
a round costs O(new tokens), not O(text).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.loop.drafter_context import DrafterContext
from spsbench.loop.types import Context, Draft, Drafter, Drawn, GoOn, Noise, Plan, Scores

Gram = tuple[int, ...]

LONGEST = 32  # tokens of an n-gram: the index holds all of a text, of every length
MATCHES = ("longest", "recent", "frequent", "first")
SOURCES = ("text", "prompt")


class LookUpDrafter(Drafter):
    """A deterministic drafter without a model; `shared`: over a memory of earlier texts, too.

    `remembers` makes the memory, which is `earlier` then.
    """

    drawn = Drawn.POINT
    shared = False
    earlier: Any = None
    remembers: ClassVar[Callable[[], Any]]

    @classmethod
    def plan(cls, **arguments: Any) -> Plan:
        return Plan(cls.drawn, cls(**arguments).tree)

    @classmethod
    def open(cls, context: DrafterContext, **arguments: Any) -> Self:
        drafter = cls(**arguments)
        if drafter.shared:
            drafter.earlier = context.memory(cls.remembers)
        return drafter


class RuleDrafter(LookUpDrafter):
    """A drafter of chains that reads tokens and nothing else: no probs, no noise, no rounds."""

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Return for each K a chain whose first K tokens are the draft after `tokens`.

        A chain may be longer than its K, and several K may share one. Calls see growing texts
        after `begin`.
        """
        raise NotImplementedError

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        (chain,) = self.proposals(context.tokens, (k,))
        return Draft(torch.tensor(chain[:k], dtype=torch.int64), None)


def count_agreeing(chain: Sequence[int], tokens: Sequence[int], at: int) -> int:
    """Return how many first tokens of a chain stand in `tokens` from position `at` on."""
    ahead = zip(chain, tokens[at : at + len(chain)], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ahead))


def look_ups(
    proposals: Callable[[Sequence[int], Sequence[int]], list[Sequence[int]]],
    text: Sequence[int],
    first: int,
    ks: Sequence[int],
) -> NDArray[np.int64]:
    """Return [2, K, L] counts of what is drafted for each K before each of the last L tokens.

    They are the length of the chain, maybe above K, and how many of its first tokens the text goes
    on with. `proposals` is the method of a drafter after its `begin`; `text` is prompt and answer,
    and `first` the position of the first of the L tokens.
    """
    most, tokens = max(ks), list(text[:first])
    rows: list[list[int]] = []
    for position in range(first, len(text)):
        row: list[int] = []
        chain, counts = None, (0, 0)
        for of_k in proposals(tokens, ks):
            if of_k is not chain:
                chain = of_k
                counts = len(chain), count_agreeing(chain[:most], text, position)
            row += counts
        rows.append(row)
        tokens.append(text[position])
    return np.array(rows, np.int64).reshape(-1, len(ks), 2).T


@dataclass
class NgramDrafter(RuleDrafter):
    """A drafter that copies the tokens after an earlier occurrence of the last `n` tokens.

    Args:
        n, min_n: lengths of the n-gram.
        match: the occurrence to copy: that of the `longest` n-gram, the most recent of these first;
            the most `recent` of any length; of the longest n-gram the most recent one with the
            most `frequent` next token; or of the longest n-gram the `first` in the text, as prompt
            lookup was published and as transformers and vLLM have it.
        source: what is searched and copied: the `text` so far, or its `prompt` alone.
    """

    ranges: ClassVar = {"n": (1, LONGEST), "min_n": (1, LONGEST)}

    n: int = 4
    min_n: int = 2
    match: str = "longest"
    source: str = "text"

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.n:
            raise ValueError(f"n is {self.n}, min_n {self.min_n}: expected 1 <= min_n <= n")
        for name, words in (("match", MATCHES), ("source", SOURCES)):
            if (word := getattr(self, name)) not in words:
                raise ValueError(f"{name} is {word!r}: expected one of {', '.join(words)}")
        self._ends: dict[Gram, int] = {}
        self._after: defaultdict[Gram, dict[int, tuple[int, int]]] = defaultdict(dict)
        # n-gram -> next token -> how often, and where last; of `frequent` alone
        self._indexed = 0  # tokens whose n-grams are in _ends
        self._text: Sequence[int] = ()  # which begins with these
        self._prompt = 0  # its tokens

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        read = self._indexed + 1
        if list(prompt[:read]) != list(self._text[:read]):  # else it goes on from the text before
            self._ends.clear()
            self._after.clear()
            self._indexed = 0
        self._prompt = len(prompt)

    def proposals(self, tokens: Sequence[int], ks: Sequence[int]) -> list[Sequence[int]]:
        """Index the text; return for every K alike what followed the match, up to the largest K."""
        self._text, searched = tokens, self._prompt if self.source == "prompt" else len(tokens)
        self._index(tokens, searched)
        end = self._match(tokens)
        copied = [] if end is None else tokens[end : min(end + max(ks), searched)]
        return [copied] * len(ks)

    def _index(self, x: Sequence[int], searched: int) -> None:
        """Index the n-grams that end before `searched`, each at its newest (or `first`) place."""
        for end in range(self._indexed + 1, searched):
            for n in range(self.min_n, min(self.n, end) + 1):
                gram = tuple(x[end - n : end])
                if self.match == "first":
                    self._ends.setdefault(gram, end)
                    continue
                self._ends[gram] = end
                if self.match == "frequent":
                    before, _ = self._after[gram].get(x[end], (0, 0))
                    self._after[gram][x[end]] = before + 1, end
        self._indexed = max(self._indexed, searched - 1)

    def _match(self, x: Sequence[int]) -> int | None:
        """Return the position after the occurrence to copy for the end of `x`; None: none."""
        longest = self.min_n if self.match == "recent" else self.n
        for n in range(min(longest, len(x)), self.min_n - 1, -1):
            gram = tuple(x[-n:])
            if gram in self._ends:
                return max(self._after[gram].values())[1] if self._after else self._ends[gram]
        return None
