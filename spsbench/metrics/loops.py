"""Whether texts repeat themselves: a loop is easy to draft, so it makes any drafter look good."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spsbench.settings.records import Record

LONGEST = 32  # tokens of a period
TIMES = 3  # that it must come at the end
FEWEST = 8  # tokens that the repetition must cover
SUSPECT = 0.1  # of the texts: more loops than that are told as a warning


@dataclass(slots=True)
class Repetition:
    """Of the texts of a cell: how varied they are, and how many end in a loop."""

    texts: int = 0  # of two tokens or more
    looping: int = 0
    variety: float = 0.0  # sum over texts of distinct bigrams over bigrams

    def add(self, record: Record) -> None:
        """Count one text; failures and texts without a bigram are none."""
        if record.error is not None or len(record.tokens) < 2:
            return
        self.texts += 1
        self.looping += ends_in_loop(record.tokens)
        self.variety += distinct_bigrams(record.tokens)

    @property
    def suspect(self) -> bool:
        """Whether so many texts loop that a speed-up says little."""
        return self.looping > SUSPECT * self.texts

    def __str__(self) -> str:
        mean = self.variety / self.texts if self.texts else 0.0
        return f"distinct bigrams {mean:.2f}, {self.looping} of {self.texts} texts end in a loop"


def distinct_bigrams(tokens: Sequence[int]) -> float:
    """The share of pairs of neighbours that are there once or for the first time."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / len(pairs)


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether the end is one stretch of tokens, several times over."""
    for period in range(1, min(LONGEST, len(tokens) // TIMES) + 1):
        length = max(period * TIMES, FEWEST)
        end = list(tokens[-length:])
        if len(end) == length and end[period:] == end[:-period]:
            return True
    return False
