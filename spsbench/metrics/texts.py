"""Greedy texts beside those of ArS: texts that are identical have identical quality."""

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
    """How many greedy texts of a cell are those of ArS, token for token."""

    equal: int
    of: int


class GreedyTexts:
    """The greedy texts of a table's cells, as hashes; records are added as they stream by."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = list(cells)
        self._greedy = {c.id: dict[tuple[str, int], int]() for c in self._cells if _is_greedy(c)}

    def add(self, record: Record) -> None:
        """Count one record; a failure has no text."""
        if record.error is None and record.cell in self._greedy:
            key = record.sample, record.repeat
            self._greedy[record.cell][key] = hash(tuple(record.tokens))

    def of(self, cell: str) -> Texts:
        """The texts of a cell by its id; none of a cell that is not greedy."""
        return self._greedy.get(cell, {})

    def same(self, cell: Cell) -> Same | None:
        """Compare the texts of a cell that drafts with those of its ArS cell; None without both."""
        base = baseline(cell, self._cells)
        if base is None or cell.k == 0:
            return None
        ours, theirs = self.of(cell.id), self.of(base.id)
        both = ours.keys() & theirs.keys()
        return Same(sum(ours[key] == theirs[key] for key in both), len(both)) if both else None

    def identical(self) -> frozenset[str]:
        """Ids of the cells that wrote what ArS wrote, wherever both have the sample."""
        found = []
        for cell in self._cells:
            base = baseline(cell, self._cells)
            if base is not None and cell.k != 0 and identical(self.of(cell.id), self.of(base.id)):
                found.append(cell.id)
        return frozenset(found)


def identical(ours: Texts, theirs: Texts) -> bool:
    """Whether two arms wrote the same for every sample that both have, and have one."""
    both = {sample for sample, _ in ours} & {sample for sample, _ in theirs}
    kept = [{k: v for k, v in arm.items() if k[0] in both} for arm in (ours, theirs)]
    return bool(both) and kept[0] == kept[1]


def _is_greedy(cell: Cell) -> bool:
    return cell.sampling.temperature == 0


# Whether texts repeat themselves: a loop is easy to draft, so it makes any drafter look good.

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
