"""Checks of texts: greedy texts against those of ArS, and repetition.

Identical texts have identical quality. A text that ends in a loop is easy to draft, so loops make
any drafter look good.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from spsbench.metrics.rates import baseline
from spsbench.settings.cell import Cell
from spsbench.settings.records import Record

Texts = Mapping[tuple[str, int], int]
"""Sample and repeat -> hash of the tokens."""


class Same(NamedTuple):
    """The number of greedy texts of a cell that equal those of ArS, token for token."""

    equal: int
    of: int

    @property
    def all(self) -> bool:
        """Return whether every text is equal."""
        return self.equal == self.of


class GreedyTexts:
    """The greedy texts of a table's cells as hashes, added as records stream by."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = list(cells)
        self._greedy = {
            c.id: dict[tuple[str, int], int]() for c in self._cells if not c.temperature
        }

    def add(self, record: Record) -> None:
        """Keep the hash of a record's text if its cell is greedy; failures have no text."""
        if record.error is None and record.cell in self._greedy:
            key = record.sample, record.repeat
            self._greedy[record.cell][key] = hash(tuple(record.tokens) or record.text)

    def of(self, cell: str) -> Texts:
        """Return the texts of a cell by its id; empty for a cell that is not greedy."""
        return self._greedy.get(cell, {})

    def same(self, cell: Cell) -> Same | None:
        """Compare the texts of a drafting cell and its ArS cell; None: no such cell, no texts."""
        base = baseline(cell, self._cells)
        if base is None or cell.k == 0:
            return None
        return compare_method_texts(self.of(cell.id), self.of(base.id))

    def identical(self) -> frozenset[str]:
        """Return ids of the cells whose texts equal those of ArS for all common samples."""
        counts = {cell.id: self.same(cell) for cell in self._cells}
        return frozenset(name for name, count in counts.items() if count and count.all)


def compare_method_texts(ours: Texts, theirs: Texts) -> Same | None:
    """Compare the texts of two methods; None: they have none in common."""
    both = ours.keys() & theirs.keys()
    return Same(sum(ours[key] == theirs[key] for key in both), len(both)) if both else None


LONGEST = 32  # tokens of a period
TIMES = 3  # least repetitions at the end
FEWEST = 8  # least tokens of the repetition
MAX_LOOPING = 0.1  # share of looping texts above which a warning appears


@dataclass(slots=True)
class Repetition:
    """Repetition in the texts of a cell: variety, and the number of texts that end in a loop."""

    texts: int = 0  # texts of two tokens or more
    looping: int = 0
    variety: float = 0.0  # sum over texts of distinct bigrams over bigrams

    def add(self, record: Record) -> None:
        """Count the text of a record; failures are ignored."""
        if record.error is None:
            self.add_text(record.tokens)

    def add_text(self, tokens: Sequence[int]) -> None:
        """Count one text; one without a bigram is ignored."""
        if len(tokens) > 1:
            self.texts += 1
            self.looping += ends_in_loop(tokens)
            self.variety += distinct_bigrams(tokens)

    @property
    def doubtful(self) -> bool:
        """Return whether enough texts loop to make a speed-up doubtful."""
        return self.looping > MAX_LOOPING * self.texts

    def __str__(self) -> str:
        mean = self.variety / self.texts if self.texts else 0.0
        return f"distinct bigrams {mean:.2f}, {self.looping} of {self.texts} texts end in a loop"


def distinct_bigrams(tokens: Sequence[int]) -> float:
    """Return distinct bigrams over bigrams, of two tokens or more."""
    pairs = list(pairwise(tokens))
    return len(set(pairs)) / len(pairs)


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Return whether `tokens` end in `TIMES` repeats of 1 to `LONGEST` tokens, `FEWEST` or more."""
    for period in range(1, min(LONGEST, len(tokens) // TIMES) + 1):
        length = max(period * TIMES, FEWEST)
        end = list(tokens[-length:])
        if len(end) == length and end[period:] == end[:-period]:
            return True
    return False
